"""What may import what; how large the core is, and that it stands alone."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tokenpace"

# From the ground up. A file may import what stands on its own line or before it.
LAYERS = [
    ["config"],
    ["weights"],
    ["cache"],
    ["model"],
    ["decode", "stop"],
    ["run"],
    ["load"],
    ["measure"],
    ["serve"],
    ["generate", "peers", "race", "bench"],
    ["show"],
    ["answers", "cells", "checking", "claims", "comparing", "exercises", "lesson", "patience", "progress", "train", "using", "models"],
    ["__main__", "__init__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

CORE = [
    "config.py",
    "model/attention.py",
    "model/transformer.py",
    "cache/*.py",
    "decode/*.py",
    "run.py",
    "stop.py",
    "measure/cost.py",
    "measure/clock.py",
]
CORE_TESTS = [
    "conftest.py",
    "oracles.py",
    "loud.py",
    "test_cache.py",
    "test_contract.py",
    "test_cost.py",
    "test_lossless.py",
    "test_model.py",
    "test_sampling.py",
    "test_stop.py",
]


def core() -> list[Path]:
    return [path for pattern in CORE for path in sorted(PACKAGE.glob(pattern))]


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[tuple[str, ...]]:
    """Dotted names that a file imports, wherever in it; relative ones made absolute."""
    here, found = ("tokenpace", *path.relative_to(PACKAGE).parts[:-1]), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            base += tuple((node.module or "").split(".")) if node.module else ()
            found |= {(*base, alias.name) for alias in node.names} if len(base) == 1 else {base}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path):
    assert layer(path) in RANK, f"{layer(path)} has no place among the layers: give it one in this test"
    for name in imports(path):
        if name[0] == "tokenpace" and len(name) > 1:
            assert RANK.get(name[1], -1) <= RANK[layer(path)], f"{path.name} imports {'.'.join(name)}, which stands above it"


def test_this_test_sees_imports(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "a.py"
    file.write_text(
        "import os.path\nfrom ..run import Step\nfrom . import b\ndef f():\n    from tokenpace.show import live\n    from .. import load\n"
    )
    assert imports(file) == {("os", "path"), ("tokenpace", "run"), ("tokenpace", "model"), ("tokenpace", "show"), ("tokenpace", "load")}


@pytest.mark.parametrize(
    "name, below",
    [
        ("decode", {"decode"}),
        ("cache", {"cache"}),
        ("model/attention.py", {"config", "cache"}),
        ("model/transformer.py", {"config", "cache", "model"}),
    ],
)
def test_who_knows_nobody_else(name, below):
    """Decoders see logits and know no model or cache; a cache knows no model; the model talks to a cache through a Pass."""
    at = PACKAGE / name
    for path in at.glob("*.py") if at.is_dir() else [at]:
        assert {n[1] for n in imports(path) if n[0] == "tokenpace" and len(n) > 1} <= below


def test_only_show_draws():
    for path in FILES:
        drawn = {n[0] for n in imports(path)} & {"matplotlib", "ipywidgets", "IPython"}
        assert not drawn or layer(path) == "show", f"{path.name} imports {drawn}"


def test_the_core_is_small():
    lines = {path: len(path.read_text().splitlines()) for path in core()}
    assert len(lines) > 15 and sum(lines.values()) <= 2500, f"the core has {sum(lines.values())} lines"


@pytest.mark.parametrize("path", core(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_core_needs_torch_alone(path):
    mine = {p.relative_to(PACKAGE).with_suffix("").parts for p in core()}
    for name in imports(path):
        if name[0] != "tokenpace":
            assert name[0] in sys.stdlib_module_names or name[0] == "torch", f"{path.name} needs {name[0]}"
        elif len(name) > 1:
            assert any(m[: len(name) - 1] == name[1:] or m == (*name[1:], "__init__") for m in mine), (
                f"{path.name} needs {'.'.join(name)}, which is not core"
            )


@pytest.mark.parametrize("name", ["config.py", "measure/cost.py"])
def test_numbers_need_no_torch(name):
    assert not any(n[0] == "torch" for n in imports(PACKAGE / name))


def python(*arguments: str, path: Path, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )


def test_the_core_stands_alone(tmp_path):
    """With everything else deleted its tests still pass (a quick choice of them; all are collected)."""
    for path in [*core(), PACKAGE / "__init__.py", PACKAGE / "model" / "__init__.py", PACKAGE / "measure" / "__init__.py"]:
        to = tmp_path / "src" / "tokenpace" / path.relative_to(PACKAGE)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    (tmp_path / "tests").mkdir()
    for name in CORE_TESTS:
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    collected = python("-m", "pytest", "-q", "--collect-only", "tests", path=tmp_path / "src", cwd=tmp_path)
    assert collected.returncode == 0, collected.stdout[-2000:] + collected.stderr[-2000:]
    quick = "(any_mix and 512) or oracle or known_numbers or history or mixed_samplers or (verify_follows and ordinary) or any_split or fails_alone"
    done = python("-m", "pytest", "-q", "-x", "tests", "-k", quick, path=tmp_path / "src", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert int(done.stdout.strip().splitlines()[-1].split(" passed")[0].split()[-1]) > 40


def test_importing_is_light():
    heavy = ["matplotlib", "ipywidgets", "transformers", "numba", "scipy", "huggingface_hub", "tokenizers", "gguf", "torch"]
    done = python("-c", f"import sys, tokenpace; print([m for m in {heavy} if m in sys.modules])", path=ROOT / "src")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
    core_only = python(
        "-c", f"import sys, tokenpace.run, tokenpace.measure.clock; print([m for m in {heavy[:-1]} if m in sys.modules])", path=ROOT / "src"
    )
    assert core_only.stdout.strip() == "[]", core_only.stdout + core_only.stderr
