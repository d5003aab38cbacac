"""What the project says of itself must agree with itself."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SAME = {"pytorch": "torch", "matplotlib-base": "matplotlib", "playwright-python": "playwright"}  # conda's name -> pip's


def name(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0]


def asked_by_pip() -> list[str]:
    return [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]


def test_conda_and_pip_ask_for_the_same():
    lines = re.findall(r"^ {2}- ([\w-]+)([^\s:]*)$", (ROOT / "environment.yml").read_text(), re.M)
    conda = {SAME.get(n, n): v for n, v in lines if n not in ("python", "pip", "conda-forge", "nodefaults")}
    assert conda == {name(r): r[len(name(r)) :] for r in asked_by_pip()}


def test_everything_asked_for_has_a_version_that_was_tested():
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    tested = {n.lower().replace("-", "_") for n in pins}
    assert not [r for r in asked_by_pip() if name(r).lower().replace("-", "_") not in tested]
    assert pins["torch"] == "2.13.0"


def test_no_file_names_a_machine():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    forbidden = re.compile(r"/(work|farm)/[a-z.]|/(root)/|bash(_)jobs")
    for path in tracked.stdout.split():
        if (ROOT / path).is_file() and not path.endswith((".png", ".safetensors")):
            found = forbidden.search((ROOT / path).read_text(errors="ignore"))
            assert not found, f"{path} holds a path of one machine: {found[0]}"


def test_the_readme_names_every_file_of_the_package():
    readme, package = (ROOT / "README.md").read_text(), ROOT / "src" / "tokenpace"
    for path in package.rglob("*.py"):
        if path.name not in ("__init__.py",):
            assert path.name in readme, f"the file tree of README.md does not mention {path.relative_to(package)}"


def test_importing_is_cheap_and_brings_nothing_heavy():
    code = (
        "import sys, torch; known = set(sys.modules); import tokenpace; tokenpace.Sampler; "
        "new = {m.split('.')[0] for m in set(sys.modules) - known}; "
        "print(sorted(new & {'matplotlib', 'ipywidgets', 'transformers', 'numba', 'tokenizers', 'gguf'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_readmes_figures_are_the_results():
    done = subprocess.run([sys.executable, ROOT / "course" / "readme.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
