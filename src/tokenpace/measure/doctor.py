"""What would keep this machine from running the course, or would spoil its figures, each with what to do about it.

A check is a function that gives a Finding, so another check is another function in CHECKS. None of them raises and none changes anything.
Plain ASCII: it is read in terminals that show nothing else, and pasted into mails.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from ..weights import registry
from . import counters
from .machine import cores, cpu_name, physical_cores, power, ram, threads

MODEL = "smollm2-135m"
OLDEST_PYTHON = (3, 11)
MEMORY = 1.5e9  # bytes of RAM that the model and a probe take


class Finding(NamedTuple):
    name: str
    verdict: str  # ok: fine | !: works, but slower or less | x: does not work
    text: str

    def __str__(self) -> str:
        line = f"[{self.verdict}]".ljust(5) + f"{self.name:10} {self.text}"
        return line.encode("ascii", "replace").decode()


def doctor() -> list[Finding]:
    """All findings. `print(*doctor(), sep="\\n")` shows them; anything marked x must be mended first."""
    return [_examine(check) for check in CHECKS]


def _examine(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # a check that fails must not hide the others
        return Finding(check.__name__, "!", f"could not be checked: {type(error).__name__}: {error}")


def python() -> Finding:
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "x", f"{platform.python_version()} is too old: {'.'.join(map(str, OLDEST_PYTHON))} or newer is needed")
    return Finding("python", "ok", f"{platform.python_version()}, {platform.system()} {platform.machine()}")


def torch() -> Finding:
    found = _version("torch")
    if not found:
        return Finding("torch", "x", "PyTorch is not installed here: run `make lab`, or see pytorch.org")
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}" if torch.version.hip else "CPU build"
    return Finding("torch", "ok", f"{found}, {build}")


def device() -> Finding:
    """The GPU that is used, the one that lies idle because this PyTorch cannot drive it, or the CPU."""
    import torch

    if torch.cuda.is_available():
        return Finding("device", "ok", f"cuda: {torch.cuda.get_device_name()}")
    if torch.backends.mps.is_available():
        return Finding("device", "ok", f"mps: {cpu_name()}")
    if _nvidia_driver():
        why = "cannot use its driver: update the driver" if torch.version.cuda else "is a CPU build: install a CUDA build as pytorch.org says"
        return Finding("device", "!", f"an NVIDIA GPU is here, but this PyTorch {why}; until then the CPU computes")
    return Finding("device", "ok", f"cpu: {cpu_name()}")


def numba() -> Finding:
    if found := _version("numba"):
        return Finding("numba", "ok", f"{found}: the tiled kernels run{_slower()}")
    return Finding("numba", "!", "not installed: plain PyTorch computes, and on a CPU a token takes two to four times as long (pip install numba)")


def _slower() -> str:
    """What a processor of Intel's and AMD's family lacks of what the kernels can use."""
    import torch

    features = torch.cpu.get_capabilities()
    if not features.get("avx2", True):
        return "; this processor has no AVX2, so they multiply few numbers at a time"
    if not features.get("avx512_f", True):
        return "; this processor has no AVX-512, so they multiply one token at a time, and wide passes gain less"
    if not features.get("avx512_bf16", True):
        return "; this processor multiplies no bfloat16, so weights are float32 unless you ask for 8 or 4 bits"
    return ""


def parallel() -> Finding:
    """Threads against cores, and who else is using them."""
    usable, used = cores(), threads()
    text = f"{usable} cores; " + ", ".join(f"{library} uses {count}" for library, count in used.items())
    if not all(physical_cores() <= count <= usable for count in used.values()):
        return Finding("threads", "!", text + ": not one per core, figures will be low (is OMP_NUM_THREADS or NUMBA_NUM_THREADS set?)")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > usable / 2:
        return Finding(
            "threads", "!", text + f"; in the last minute {load:.1f} programs wanted a core at a time, close what you can before measuring"
        )
    return Finding("threads", "ok", text)


def battery() -> Finding:
    if power() == "battery":
        return Finding("power", "!", "on battery: most laptops run slower, plug it in before measuring")
    return Finding("power", "ok", "mains" if power() else "no battery")


def energy() -> Finding:
    """Whether anything counts joules. Without, all that is about seconds works as it does with."""
    import torch

    found = counters.counter("cuda" if torch.cuda.is_available() else "cpu")
    if found.readable:
        return Finding("energy", "ok", f"joules are readable: {found.name}")
    return Finding("energy", "!", f"joules are not readable here: {found.why}")


def memory() -> Finding:
    total, free = ram()
    if free is None:
        return Finding("memory", "!", "this system does not tell how much is free")
    text = f"{free / 1e9:.1f} GB free" + (f" of {total / 1e9:.1f}" if total else "")
    if free < MEMORY:
        return Finding("memory", "x", text + f": the model and a probe take {MEMORY / 1e9:.1f} GB, close something")
    return Finding("memory", "ok", text)


def disk() -> Finding:
    folder, wanted = registry.cache_folder(), registry.entry(MODEL)
    free = shutil.disk_usage(next(parent for parent in (folder, *folder.parents) if parent.exists())).free
    needed = wanted.wheel_bytes + wanted.file_bytes
    if free < needed and not _cached():
        text = f"{free / 1e9:.1f} GB free in the cache folder, {needed / 1e9:.1f} are needed: free some, or set TOKENPACE_CACHE to another disk"
        return Finding("disk", "x", text)
    return Finding("disk", "ok", f"{free / 1e9:.1f} GB free in the cache folder")


def model() -> Finding:
    if _cached():
        return Finding("model", "ok", f"{MODEL} is here")
    return Finding("model", "!", f"{MODEL} is not here yet: python -m tokenpace fetch {MODEL}")


def network() -> Finding:
    """The index that pip is set to serves the model too."""
    if _index_answers():
        return Finding("network", "ok", "the package index answers")
    if _cached():
        return Finding("network", "ok", "the package index does not answer; all that is needed is here")
    return Finding("network", "!", "the package index does not answer; shape: models (random weights) still measure every latency")


def kernel() -> Finding:
    """Whether a notebook's "python3" is this Python. If it is another one, `import tokenpace` fails there, or finds another version."""
    if not _version("jupyterlab"):
        return Finding("jupyter", "!", "not installed here: the command line works, the notebooks do not (make lab)")
    command = _kernel_command()
    if command is None:
        return Finding("jupyter", "x", "no kernel is called python3: python -m ipykernel install --sys-prefix --name python3")
    # The programs of a virtual environment are links to one Python: their folders tell them apart.
    if Path(command).is_absolute() and Path(command).parent.resolve() != Path(sys.executable).parent.resolve():
        return Finding("jupyter", "x", "the kernel python3 is another Python: python -m ipykernel install --sys-prefix --name python3")
    return Finding("jupyter", "ok", f"{_version('jupyterlab')}, and its kernel python3 is this Python")


def interrupts() -> Finding:
    found = _version("ipykernel")
    if not found:
        return Finding("ipykernel", "!", "not installed: notebooks do not run (make lab)")
    major_minor = tuple(int(part) for part in found.split(".")[:2])
    if major_minor < (6, 31):
        return Finding("ipykernel", "!", f"{found} is older than what was tried: install 7.4 or newer")
    if (7, 0) <= major_minor < (7, 4):
        return Finding("ipykernel", "!", f"{found} can ignore an interrupt of a button's run, which then ends with its budget: install 7.4 or newer")
    return Finding("ipykernel", "ok", found)


CHECKS = (python, torch, device, numba, parallel, battery, energy, memory, disk, model, network, kernel, interrupts)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cached() -> bool:
    """The model's file is there and as long as it should be. Its checksum takes longer, and `fetch` looks at it."""
    wanted = registry.entry(MODEL)
    path = registry.cache_folder() / wanted.filename
    return path.exists() and path.stat().st_size == wanted.file_bytes


def _index_answers() -> bool:
    """pip is asked, because only pip knows the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "index", "versions", registry.entry(MODEL).package]
    command += ["--timeout", "5", "--retries", "0", "--disable-pip-version-check"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _nvidia_driver() -> bool:
    return bool(shutil.which("nvidia-smi")) or Path("/proc/driver/nvidia").exists()


def _kernel_command() -> str | None:
    """The program that Jupyter would start for the kernel "python3"; a bare name stands for the Python that runs Jupyter."""
    asked = subprocess.run([sys.executable, "-m", "jupyter", "kernelspec", "list", "--json"], capture_output=True, text=True, timeout=30)
    spec = json.loads(asked.stdout).get("kernelspecs", {}).get("python3")
    return spec["spec"]["argv"][0] if spec else None
