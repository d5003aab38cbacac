"""The doctor finds what is wrong on a machine that has it (here: pretended), says what to do, and never raises."""

import subprocess
import sys
import types

import pytest

from tokenpace.measure import doctor as doctor_module
from tokenpace.measure.counters import Counter, nothing
from tokenpace.measure.doctor import CHECKS, Finding, doctor


@pytest.fixture
def pretend(monkeypatch):
    """pretend(name=value) replaces what the doctor looks at; a plain value becomes a function that gives it."""

    def pretended(**values):
        for name, value in values.items():
            monkeypatch.setattr(doctor_module, name, value if callable(value) else lambda *args, value=value: value)

    return pretended


def pip(status):
    return lambda command, **options: types.SimpleNamespace(returncode=status, stdout="", stderr="")


def test_on_this_machine_nothing_raises_and_all_is_ascii(pretend):
    pretend(_index_answers=True)
    found = doctor()
    assert len(found) == len(CHECKS) == len({f.name for f in found})
    for finding in found:
        assert finding.verdict in ("ok", "!", "x") and finding.text and "could not be checked" not in finding.text
        assert str(finding).isascii() and "\n" not in str(finding)


def test_a_line_as_it_is_printed():
    assert str(Finding("numba", "ok", "0.65")) == "[ok] numba      0.65"
    assert str(Finding("cpu", "!", "Köln™")) == "[!]  cpu        K?ln?"


def test_a_check_that_fails_does_not_hide_the_others(monkeypatch):
    def broken():
        raise OSError("no such file")

    monkeypatch.setattr(doctor_module, "CHECKS", (broken, doctor_module.python))
    assert doctor()[0] == Finding("broken", "!", "could not be checked: OSError: no such file")
    assert doctor()[1].verdict == "ok"


def test_without_torch_it_still_speaks():
    program = (
        "import sys, importlib.metadata as m; sys.modules['torch'] = None; real = m.version\n"
        "def version(name):\n    if name == 'torch': raise m.PackageNotFoundError(name)\n    return real(name)\n"
        "m.version = version\n"
        "from tokenpace.measure import doctor as d\n"
        "d._index_answers = lambda: True\n"
        "print(*d.doctor(), sep='\\n')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "[x]  torch      PyTorch is not installed here" in ran.stdout


def test_python(monkeypatch):
    monkeypatch.setattr(doctor_module.sys, "version_info", (3, 10, 2))
    assert doctor_module.python() == Finding("python", "x", f"{doctor_module.platform.python_version()} is too old: 3.11 or newer is needed")


@pytest.mark.parametrize(
    "cuda_build, driver, usable, verdict, words",
    [
        (None, True, False, "!", "is a CPU build: install a CUDA build"),
        ("12.8", True, False, "!", "update the driver"),
        (None, False, False, "ok", "cpu: "),
        ("12.8", True, True, "ok", "cuda: Some GPU"),
    ],
)
def test_device(cuda_build, driver, usable, verdict, words, pretend, monkeypatch):
    import torch

    monkeypatch.setattr(torch.version, "cuda", cuda_build)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    pretend(_nvidia_driver=driver)
    found = doctor_module.device()
    assert found.verdict == verdict and words in found.text


def test_numba_and_what_its_absence_costs(pretend):
    pretend(_version=None)
    found = doctor_module.numba()
    assert found.verdict == "!" and "two to four times as long" in found.text and "pip install numba" in found.text


@pytest.mark.parametrize(
    "features, words",
    [
        ({"avx2": True, "avx512_f": True, "avx512_bf16": True}, "kernels run"),
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False}, "multiplies no bfloat16"),
        ({"avx2": True, "avx512_f": False, "avx512_bf16": False}, "no AVX-512"),
        ({"avx2": False, "avx512_f": False, "avx512_bf16": False}, "no AVX2"),
        ({"neon": True, "bf16": True}, "kernels run"),
    ],
)
def test_what_a_processor_lacks_for_the_kernels(features, words, pretend, monkeypatch):
    import torch

    pretend(_version="0.68")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    found = doctor_module.numba()
    assert found.verdict == "ok" and found.text.endswith(words) == (words == "kernels run") and words in found.text


@pytest.mark.parametrize(
    "usable, used, load, verdict, words",
    [
        (8, {"torch": 8, "numba": 8}, 0.5, "ok", "8 cores; torch uses 8, numba uses 8"),
        (8, {"torch": 4, "numba": 8}, 0.5, "!", "OMP_NUM_THREADS"),
        (2, {"torch": 8}, 0.1, "!", "not one per core"),
        (8, {"torch": 8}, 6.2, "!", "6.2 programs wanted a core"),
    ],
)
def test_threads_and_load(usable, used, load, verdict, words, pretend, monkeypatch):
    pretend(cores=usable, physical_cores=usable, threads=used)
    monkeypatch.setattr(doctor_module.os, "getloadavg", lambda: (load, 0, 0), raising=False)
    found = doctor_module.parallel()
    assert found.verdict == verdict and words in found.text


def test_half_the_cores_count_as_one_thread_each(pretend, monkeypatch):
    """PyTorch takes one thread per core, not per hardware thread: that is right, and no reason to warn."""
    pretend(cores=16, physical_cores=8, threads={"torch": 8, "numba": 16})
    monkeypatch.setattr(doctor_module.os, "getloadavg", lambda: (0.0, 0, 0), raising=False)
    assert doctor_module.parallel().verdict == "ok"


@pytest.mark.parametrize("supply, verdict, text", [("battery", "!", "plug it in"), ("mains", "ok", "mains"), (None, "ok", "no battery")])
def test_battery(supply, verdict, text, pretend):
    pretend(power=supply)
    assert doctor_module.battery().verdict == verdict and text in doctor_module.battery().text


@pytest.mark.parametrize(
    "found, verdict, text",
    [
        (Counter("RAPL, 1 package", 0.001), "ok", "joules are readable: RAPL"),
        (nothing("only root may"), "!", "joules are not readable here: only root may"),
    ],
)
def test_energy(found, verdict, text, monkeypatch):
    monkeypatch.setattr(doctor_module.counters, "counter", lambda device: found)
    assert doctor_module.energy().verdict == verdict and text in doctor_module.energy().text


@pytest.mark.parametrize("usable, device", [(False, "cpu"), (True, "cuda")])
def test_energy_of_what_computes(usable, device, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: usable)
    monkeypatch.setattr(doctor_module.counters, "counter", lambda of: nothing(f"asked about {of}"))
    assert f"asked about {device}" in doctor_module.energy().text


@pytest.mark.parametrize("total, free, verdict", [(8e9, 4e9, "ok"), (8e9, 1.4e9, "x"), (None, None, "!")])
def test_memory(total, free, verdict, pretend):
    pretend(ram=(total, free))
    assert doctor_module.memory().verdict == verdict


@pytest.mark.parametrize("free, cached, verdict", [(1e12, False, "ok"), (0.1e9, False, "x"), (0.1e9, True, "ok")])
def test_disk(free, cached, verdict, pretend, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENPACE_CACHE", str(tmp_path / "not" / "there" / "yet"))
    monkeypatch.setattr(doctor_module.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=free) if path == tmp_path else 1 / 0)
    pretend(_cached=cached)
    found = doctor_module.disk()
    assert found.verdict == verdict and (verdict == "ok" or "TOKENPACE_CACHE" in found.text)


def test_model(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENPACE_CACHE", str(tmp_path))
    wanted = doctor_module.registry.entry(doctor_module.MODEL)
    assert doctor_module.model() == Finding("model", "!", f"{doctor_module.MODEL} is not here yet: python -m tokenpace fetch {doctor_module.MODEL}")
    with open(tmp_path / wanted.filename, "wb") as file:
        file.truncate(wanted.file_bytes - 1)
    assert doctor_module.model().verdict == "!"
    with open(tmp_path / wanted.filename, "wb") as file:
        file.truncate(wanted.file_bytes)
    assert doctor_module.model().verdict == "ok"


@pytest.mark.parametrize(
    "answers, cached, verdict, words",
    [
        (True, False, "ok", "answers"),
        (False, True, "ok", "all that is needed is here"),
        (False, False, "!", "shape: models"),
    ],
)
def test_network(answers, cached, verdict, words, pretend):
    pretend(_index_answers=answers, _cached=cached)
    found = doctor_module.network()
    assert found.verdict == verdict and words in found.text


def test_the_index_is_asked_through_pip(monkeypatch):
    monkeypatch.setattr(doctor_module.subprocess, "run", pip(0))
    assert doctor_module._index_answers() is True
    monkeypatch.setattr(doctor_module.subprocess, "run", pip(1))
    assert doctor_module._index_answers() is False

    def hangs(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(doctor_module.subprocess, "run", hangs)
    assert doctor_module._index_answers() is False


@pytest.mark.parametrize(
    "command, verdict, words",
    [
        ("python", "ok", "is this Python"),
        (sys.executable, "ok", "is this Python"),
        ("/elsewhere/bin/python", "x", "another Python"),
        (None, "x", "no kernel is called python3"),
    ],
)
def test_kernel(command, verdict, words, pretend):
    pretend(_kernel_command=command)
    found = doctor_module.kernel()
    assert found.verdict == verdict and words in found.text
    pretend(_version=None)
    assert doctor_module.kernel().verdict == "!"


@pytest.mark.parametrize(
    "version, verdict",
    [("6.31.0", "ok"), ("7.0.1", "!"), ("7.3.9", "!"), ("7.4.0a1", "ok"), ("7.10.0", "ok"), ("8.0", "ok"), ("6.29.5", "!"), (None, "!")],
)
def test_ipykernel(version, verdict, pretend):
    pretend(_version=version)
    assert doctor_module.interrupts().verdict == verdict
