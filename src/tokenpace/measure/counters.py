"""Who counts joules: processors and graphics cards keep a counter of the energy that they took. Where none can be read, this says why.

    counter("cpu")      the packages of the processor, as Linux shows them (powercap, "RAPL")
    counter("cuda:0")   a graphics card, as NVIDIA's NVML tells it

A counter counts what it is built into, and nothing else: RAPL's package is the processor's chip without the memory beside it, NVML's card is the
whole card without the computer around it. Neither knows the power supply's losses. So joules of two kinds of counter are not compared.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

POWERCAP = "sys/class/powercap"
UNLOCK = "`sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj` lets everybody, until the next start"


@dataclass
class Counter:
    """What counts here: its name, the seconds between two updates of its number, and why nothing can be read (empty: it can)."""

    name: str
    step: float
    why: str = ""

    @property
    def readable(self) -> bool:
        return not self.why

    def joules(self) -> float:
        """Joules since it was opened; never fewer than before. OSError where nothing can be read."""
        raise OSError(f"joules are not readable here: {self.why or 'this is a counter that was recorded'}")


def nothing(why: str) -> Counter:
    """No counter, and why."""
    return Counter("nothing", 0.0, why)


def counter(device: str = "cpu", root: Path = Path("/")) -> Counter:
    """What counts the joules of a device ("cpu", "cuda", "cuda:1", "mps"). It never fails: where nothing is readable, its `why` says what to do.

    root: where the folders sys and proc lie.
    """
    if str(device).startswith("cuda"):
        return _nvml(str(device))
    return _rapl(Path(root))


# Linux: /sys/class/powercap -------------------------------------------------------------------------------------------


class Package:
    """One counter of microjoules, which starts again at 0 after `range` of them."""

    def __init__(self, folder: Path):
        self.file, self.range = folder / "energy_uj", _number(folder / "max_energy_range_uj")
        self.last, self.total = _number(self.file), 0

    def joules(self) -> float:
        """Since it was opened. It has to be read once in a range at least (minutes): nobody can see that it started again twice."""
        now = _number(self.file)
        self.total += now - self.last + (self.range if now < self.last else 0)
        self.last = now
        return self.total / 1e6


class Rapl(Counter):
    """The packages of the processor together. Their parts (core, uncore) are in them, psys holds them, and intel-rapl-mmio shows them once more:
    all of these are left out, so that nothing is counted twice. Memory (dram) is a domain of its own where there is one, and is left out too.
    """

    def __init__(self, folders: list[Path]):
        super().__init__(f"RAPL, {len(folders)} package{'s' * (len(folders) > 1)}", 0.001)
        self.packages = [Package(folder) for folder in folders]

    def joules(self) -> float:
        return sum(package.joules() for package in self.packages)


def _rapl(root: Path) -> Counter:
    if sys.platform != "linux":
        return nothing("only Linux shows its counters to a program; macOS has the command powermetrics, for root")
    domains = [path for path in sorted((root / POWERCAP).glob("intel-rapl:*")) if re.fullmatch(r"intel-rapl:\d+", path.name)]
    try:
        packages = [path for path in domains if (path / "name").read_text().startswith("package")]
        if packages:
            return Rapl(packages)
    except PermissionError:
        return nothing(f"the counters are there, but only root may read them: {UNLOCK}")
    except (OSError, ValueError) as error:
        return nothing(f"a counter is there, but gives no number ({type(error).__name__}: {error})")
    if _virtual(root):
        return nothing("this is a virtual machine, and the counters are its host's")
    return nothing("this processor or this kernel shows no counter (nothing of a package in /sys/class/powercap)")


def _number(path: Path) -> int:
    return int(path.read_text())


def _virtual(root: Path) -> bool:
    """An x86 processor tells that it is not alone with a flag."""
    try:
        return re.search(r"^flags\b.*\bhypervisor\b", (root / "proc/cpuinfo").read_text(), re.MULTILINE) is not None
    except OSError:
        return False


# NVIDIA: NVML ---------------------------------------------------------------------------------------------------------


class Nvml(Counter):
    """A graphics card's own count, in millijoules since its driver was loaded (nvmlDeviceGetTotalEnergyConsumption, Volta and later)."""

    def __init__(self, nvml, handle, name: str):
        super().__init__(f"NVML, {name}", 0.1)  # cards renew the number some ten to fifty times a second
        self.nvml, self.handle = nvml, handle
        self.first = self._millijoules()

    def _millijoules(self) -> int:
        return self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)

    def joules(self) -> float:
        return (self._millijoules() - self.first) / 1e3


def _nvml(device: str) -> Counter:
    try:
        import pynvml
    except ImportError:
        return nothing("NVIDIA's counter needs the package nvidia-ml-py: pip install nvidia-ml-py")
    import torch

    try:
        pynvml.nvmlInit()
        card = torch.cuda.get_device_properties(device)
        # by its own name: NVML numbers all cards, torch those that it may use
        return Nvml(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{card.uuid}"), card.name)
    except (pynvml.NVMLError, RuntimeError, AssertionError) as error:  # torch raises the others where there is no such card
        return nothing(f"the card's driver gives no count ({error})")
