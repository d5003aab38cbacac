"""What this machine is. A figure without its machine is not a result, so every trace and every probe carries this.

Only what explains a speed is kept: never a host name, a user, a path or a serial number. What a machine does not tell is None, not a guess;
the one exception is the size of the last-level cache, which decides how large a buffer must be to lie outside it: see `last_level_cache`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

ASSUMED_CACHE = 32 << 20  # bytes; where nothing says how large the last-level cache is
PROCESSORS = Path("/sys/devices/system/cpu")  # where Linux tells about them
LIBRARIES = ("torch", "numpy", "numba", "transformers", "tokenizers", "safetensors", "gguf")
X86 = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16")
FEATURES = (*X86, "asimd", "asimdhp", "bf16", "i8mm", "sve")
APPLE = {"AdvSIMD": "asimd", "arm.FEAT_FP16": "asimdhp", "arm.FEAT_BF16": "bf16", "arm.FEAT_I8MM": "i8mm"}


def machine(device: str = "cpu") -> dict:
    """This machine, ready for JSON: sizes in bytes, clock in hertz, `load` the mean number of busy threads over the last minute.

    >>> here = machine()
    >>> here["device"], here["cores"] >= 1, here["ram"]["total"] > 2**30
    ('cpu', True, True)
    """
    llc, source = last_level_cache(device)
    return {
        "device": str(device),
        "name": device_name(device),
        "cpu": cpu_name(),
        "cores": cores(),
        "physical_cores": physical_cores(),
        "threads": threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "ram": dict(zip(("total", "available"), ram())),
        "caches": caches(),
        "last_level_cache": {"bytes": llc, "source": source},
        "features": features(),
        "clock": clock(),
        "power": power(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
    }


def cores() -> int:
    """Processors this process may use: fewer than the machine has under an affinity mask or a container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = (_read("/sys/fs/cgroup/cpu.max") or "max 1").split()
    return allowed if quota == "max" else max(1, min(allowed, round(int(quota) / int(period))))


def physical_cores() -> int:
    """Of those, cores that share nothing with another: half as many where each runs two threads. PyTorch starts this many."""
    found = {_read(path) for path in PROCESSORS.glob("cpu[0-9]*/topology/thread_siblings_list")} - {None}
    return min(len(found) or _sysctl("hw.physicalcpu") or cores(), cores())


def threads() -> dict[str, int]:
    """Threads each library computes with. Numba appears where it is installed."""
    import torch

    found = {"torch": torch.get_num_threads()}
    if find_spec("numba"):
        import numba

        found["numba"] = numba.get_num_threads()
    return found


def ram() -> tuple[int | None, int | None]:
    """Bytes of memory: in all, and free for a new program without swapping."""
    if text := _read("/proc/meminfo"):
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in text.splitlines()}
        return sizes.get("MemTotal"), sizes.get("MemAvailable", sizes.get("MemFree"))
    if sys.platform == "win32":
        return _windows_ram()
    total = _sysctl("hw.memsize")
    pages = [line.split(":")[1].strip(" .") for line in _output("vm_stat").splitlines() if line.startswith(("Pages free", "Pages inactive"))]
    return total, sum(map(int, pages)) * (_sysctl("hw.pagesize") or 4096) if pages else None


def caches() -> dict[str, int]:
    """Bytes of each level of data cache, all its copies together: {"L1": …, "L2": …, "L3": …}; empty where the system does not say."""
    parts: dict[tuple[str, str], int] = {}
    for index in PROCESSORS.glob("cpu[0-9]*/cache/index[0-9]*"):
        kind, level, size, sharers = (_read(index / name) for name in ("type", "level", "size", "shared_cpu_list"))
        if kind in ("Data", "Unified") and level and size:
            parts["L" + level, sharers or ""] = int(size.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(size[-1], 0)
    found: dict[str, int] = {}
    for (level, _), size in sorted(parts.items()):
        found[level] = found.get(level, 0) + size
    if not found and sys.platform == "darwin":
        sizes = {"L1": "hw.l1dcachesize", "L2": "hw.perflevel0.l2cachesize", "L3": "hw.l3cachesize"}
        found = {level: size for level, key in sizes.items() if (size := _sysctl(key))}
    return found


def last_level_cache(device: str = "cpu") -> tuple[int, str]:
    """(bytes, where that is from). Not known is taken as 32 MB: "assumed" then stands beside the figure.

    Apple's chips have a system-level cache that nothing reports, so there the larger of L2 and the assumption holds.
    """
    if str(device).startswith("cuda"):
        import torch

        return torch.cuda.get_device_properties(device).L2_cache_size, "driver"
    known = max(caches().values(), default=0)
    if sys.platform == "darwin" or not known:
        return max(known, ASSUMED_CACHE), "assumed"
    return known, "system"


def features() -> list[str]:
    """Instruction-set extensions that decide how fast a dtype is, among FEATURES."""
    text = _read("/proc/cpuinfo") or ""
    flags = {word for line in text.splitlines() if line.lower().startswith(("flags", "features")) for word in line.split(":")[1].split()}
    if not flags and sys.platform == "darwin":
        flags = {name for key, name in APPLE.items() if _sysctl(f"hw.optional.{key}")}
    return [name for name in FEATURES if name in flags]


def clock() -> dict:
    """Hertz of the first core at its highest and, if the system slows it on purpose, the governor that does."""
    folder = PROCESSORS / "cpu0/cpufreq"
    highest = _read(folder / "cpuinfo_max_freq")
    return {"highest": int(highest) * 1000 if highest else None, "governor": _read(folder / "scaling_governor")}


def power() -> str | None:
    """Either "mains" or "battery"; None on a machine without a battery that says so. On battery most laptops run slower."""
    if sys.platform == "darwin":
        text = _output("pmset", "-g", "batt")
        return "battery" if "Battery Power" in text else "mains" if "AC Power" in text else None
    supplies = [(_read(s / "type"), _read(s / "online"), _read(s / "status")) for s in Path("/sys/class/power_supply").glob("*")]
    if not any(kind == "Battery" for kind, _, _ in supplies):
        return None
    plugged = any(kind in ("Mains", "USB") and online == "1" for kind, online, _ in supplies)
    return "mains" if plugged or not any(status == "Discharging" for _, _, status in supplies) else "battery"


def cpu_name() -> str:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine()


def device_name(device: str = "cpu") -> str:
    if str(device).startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return cpu_name()  # an Apple GPU has no name of its own: the chip's says it


def versions() -> dict[str, str]:
    """Versions of Python and of each installed library that could change a figure."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _read(path) -> str | None:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _sysctl(name: str) -> int | None:
    text = _output("sysctl", "-n", name)
    return int(text) if text.isdigit() else None


def _windows_ram() -> tuple[int, int]:
    import ctypes

    class Status(ctypes.Structure):  # MEMORYSTATUSEX
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [
            (name, ctypes.c_ulonglong) for name in ("total", "available", "pages", "pages_free", "virtual", "virtual_free", "extended")
        ]

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return status.total, status.available
