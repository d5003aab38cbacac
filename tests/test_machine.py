"""What a machine is and what it can do: on fake clocks and fake devices that hide the faults of real benchmarks (CASES.md M1 to M3)."""

import getpass
import json
import math
import os
import socket
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenpace.measure import cost
from tokenpace.measure import machine as machine_module
from tokenpace.measure import probe as probe_module
from tokenpace.measure.devices import DEVICES, like
from tokenpace.measure.devices import device as device_sheet
from tokenpace.measure.machine import caches, cores, last_level_cache, machine
from tokenpace.measure.probe import Load, large, probe, probing, roof_now
from tokenpace.measure.roof import Roof, Sample, Task, band, fold, limit

MB = 1 << 20
HERE = {
    "device": "cpu",
    "name": "a CPU",
    "cores": 2,
    "last_level_cache": {"bytes": 32 * MB, "source": "system"},
    "features": ["avx2", "avx512f", "avx512_bf16"],
    "clock": {"highest": 3e9, "governor": None},
}
TICK = 1e-9


class Fake:
    """A device that queues its work like a GPU, and a clock that only moves when somebody waits for it (or looks at it)."""

    def __init__(self):
        self.time, self.queued, self.last = 0.0, 0.0, None

    def now(self):
        self.time += TICK
        return self.time

    def sync(self):
        self.time, self.queued = self.time + self.queued, 0.0

    def load(self, task, seconds, first=1, after_another=1):
        """Takes `seconds`; the very first run `first` times as long, a run just after another load `after_another` times."""
        state = {"runs": 0}

        def run(times):
            slow = first if not state["runs"] else after_another if self.last is not run else 1
            self.last, state["runs"] = run, state["runs"] + times
            self.queued += seconds * (times - 1 + slow)

        return Load(task, run)


def read(size, threads=2, work=None):
    return Task("read", size, "float32", threads, "a loop", float(work or size))


def multiply(n=1024, dtype="float32", threads=2):
    return Task("multiply", n, dtype, threads, "mm", 2.0 * n**3)


LAUNCH = Task("launch", 3, "float32", 2, "ops", 3.0)
BIG = 512 * MB


def samples(task, *seconds):
    return [Sample(task, s) for s in seconds]


# ---- probing: what is timed


def test_the_clock_is_read_after_the_device_has_finished():  # M1
    fake = Fake()
    loads = [fake.load(read(BIG), BIG / 40e9), fake.load(multiply(), 0.01)]
    roof = fold(HERE, probing(loads, 2.0, fake.sync, fake.now))
    assert roof.bandwidth == pytest.approx(40e9, rel=1e-3)
    assert roof.flops() == pytest.approx(2 * 1024**3 / 0.01, rel=1e-3)


def test_a_clock_that_does_not_wait_gives_no_figure():  # M1: what a missing synchronise shows is impossible, and is refused
    fake = Fake()
    loads = [fake.load(read(BIG), BIG / 40e9), fake.load(multiply(), 0.01)]
    roof = fold(HERE, probing(loads, 1e-5, lambda: None, fake.now))
    assert all(not p.seconds and p.rejected for p in roof.points)
    with pytest.raises(ValueError, match="impossible"):
        roof.device()


@pytest.mark.parametrize("slow", [{"first": 100}, {"after_another": 3}, {"first": 100, "after_another": 3}])
def test_warm_up_is_excluded(slow):  # M2
    fake = Fake()
    loads = [fake.load(read(BIG), 0.01, **slow), fake.load(multiply(), 0.008, **slow), fake.load(LAUNCH, 3e-6, **slow)]
    roof = fold(HERE, probing(loads, 5.0, fake.sync, fake.now))
    assert len(roof.points) == 3
    for point, seconds in zip(roof.points, (0.01, 0.008, 3e-6)):
        assert len(point.seconds) > 3 and max(point.seconds) == pytest.approx(seconds, rel=0.01)


def test_short_work_is_repeated_until_the_clock_can_see_it():
    fake = Fake()
    assert probe_module.ENOUGH > 1e5 * TICK
    counted = []
    inner = fake.load(LAUNCH, 3e-6)

    def run(times):
        counted.append(times)
        inner.run(times)

    load = Load(LAUNCH, run)
    assert len(list(probing([load], 0.05, fake.sync, fake.now))) > 3
    assert counted[-1] * 3e-6 >= probe_module.ENOUGH
    assert counted[-1] * 3e-6 < 20 * probe_module.ENOUGH


def test_a_busy_machine_makes_samples_longer():
    """Where every run first waits 8 ms for a core, a run of a microsecond must be repeated for about as long, or the wait is all that is seen."""
    fake = Fake()

    def run(times):
        fake.queued += times * 1e-6 + 8e-3

    found = list(probing([Load(LAUNCH, run)], 2.0, fake.sync, fake.now))
    assert found[-1].seconds < 3e-6


def test_tasks_take_turns():
    fake = Fake()
    tasks = [read(BIG), multiply(), LAUNCH]
    order = [s.task for s in probing([fake.load(t, 0.01) for t in tasks], 1.0, fake.sync, fake.now)]
    assert order[:9] == tasks * 3


@given(st.lists(st.floats(1e-5, 0.05), min_size=1, max_size=6), st.floats(2.0, 4.0))
def test_the_budget_is_kept(durations, budget):
    fake = Fake()
    loads = [fake.load(read(BIG + i), seconds) for i, seconds in enumerate(durations)]
    found = list(probing(loads, budget, fake.sync, fake.now))
    assert fake.time <= budget + 1e-6
    assert {s.task for s in found} == {load.task for load in loads}
    assert fake.time > budget - 2.2 * max(max(durations), probe_module.PLENTY)  # and it is used


def test_a_budget_of_nothing_still_gives_a_coarse_roof():
    fake = Fake()
    tasks = [read(BIG), multiply(), multiply(dtype="bfloat16"), LAUNCH, read(MB), multiply(512)]
    found = [s.task for s in probing([fake.load(t, 0.01) for t in tasks], 0.0, fake.sync, fake.now)]
    assert found == tasks[:4]


def test_drawing_between_samples_is_not_timed():
    fake, found = Fake(), []
    for sample in probing([fake.load(read(BIG), 0.01)], 3.0, fake.sync, fake.now):
        found.append(sample.seconds)
        fake.time += 0.5  # a figure is drawn
    assert found == pytest.approx([0.01] * len(found)) and 3 <= len(found) <= 6


def test_what_cannot_run_is_said_and_the_rest_is_measured():
    fake = Fake()

    def fails(times):
        raise RuntimeError('"addmm_impl" not implemented for Half\nand a trace')

    loads = [Load(multiply(dtype="float16"), fails), fake.load(multiply(), 0.01)]
    roof = fold(HERE, probing(loads, 0.5, fake.sync, fake.now))
    assert roof.flops("float32") > 0
    assert roof.notes == ('multiply float16 1024 could not be run: "addmm_impl" not implemented for Half',)
    with pytest.raises(ValueError, match=r"float16.*did you mean float32"):
        roof.flops("float16")


def test_an_interrupt_keeps_what_was_measured(monkeypatch):
    fake, runs = Fake(), []
    inner = fake.load(read(BIG), 0.01)

    def run(times):
        runs.append(times)
        if len(runs) == 12:
            raise KeyboardInterrupt
        inner.run(times)
        fake.sync()

    monkeypatch.setattr(probe_module, "loads", lambda device: [Load(read(BIG), run)])
    monkeypatch.setattr(machine_module.os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)
    roof = probe(60.0, now=fake.now)
    assert roof.points[0].seconds == pytest.approx([0.01] * len(roof.points[0].seconds)) and len(roof.points[0].seconds) >= 3
    assert roof.notes == (f"interrupted: {len(roof.points[0].seconds)} samples kept",)
    assert Roof.from_dict(roof.to_dict()) == roof


def test_an_interrupt_before_anything_leaves_an_empty_roof_that_says_so(monkeypatch):
    def interrupted(device):
        raise KeyboardInterrupt

    monkeypatch.setattr(probe_module, "loads", interrupted)
    monkeypatch.setattr(machine_module.os, "getloadavg", lambda: (7.0, 0.0, 0.0), raising=False)
    roof = probe(1.0)
    assert roof.points == () and roof.notes[0].startswith("in the minute before, 7.0 programs ")
    with pytest.raises(ValueError, match=r"not measured; in the minute before, .*; interrupted: 0 samples kept: probe again"):
        roof.device()


# ---- folding: what is believed


def test_median_spread_and_launch():
    roof = fold(HERE, samples(read(BIG), *(BIG / r for r in (40e9, 42e9, 44e9, 46e9, 20e9))) + samples(LAUNCH, 3e-6, 6e-6, 9e-6))
    assert roof.bandwidth == pytest.approx(42e9)
    seconds = sorted(BIG / r for r in (40e9, 42e9, 44e9, 46e9, 20e9))  # of five, the quartiles are the second and the fourth
    assert roof.read.spread == pytest.approx((seconds[3] - seconds[1]) / seconds[2])
    assert roof.launch == pytest.approx(2e-6)
    assert math.isnan(fold(HERE, samples(LAUNCH, 1e-6)).points[0].spread)


@pytest.mark.parametrize("seconds", [0.0, -1e-3, math.nan, math.inf, -math.inf])
def test_times_no_clock_can_show_are_rejected(seconds):  # M3
    roof = fold(HERE, samples(read(BIG), 0.01, seconds, 0.012, 0.014))
    assert roof.points[0].seconds == (0.01, 0.012, 0.014)
    assert roof.points[0].rejected == (f"{seconds} s: no clock can have shown that",)
    assert len(roof.notes) == 1 and "1 impossible" in roof.notes[0]
    json.dumps(roof.to_dict(), allow_nan=False)


def test_memory_faster_than_the_caches_is_rejected():  # M3: the buffer was in a cache, or was never read
    cached = samples(read(MB), *[MB / 200e9] * 3) + samples(read(16 * MB), *[16 * MB / 150e9] * 3)
    roof = fold(HERE, cached + samples(read(BIG), BIG / 40e9, BIG / 41e9, BIG / 260e9, BIG / 250e9, BIG / 199e9))
    point = roof.read
    assert sorted(BIG / s for s in point.seconds) == pytest.approx([40e9, 41e9, 199e9]) and len(point.rejected) == 2
    assert "above the 2e+11" in point.rejected[0]
    assert all(not p.rejected for p in roof.points if p.task.size < BIG)
    few = fold(HERE, samples(read(MB), *[MB / 2e9] * 4) + samples(read(BIG), BIG / 40e9))  # four reads that had to wait bound nothing
    assert few.bandwidth == pytest.approx(40e9)


def test_a_cached_read_says_nothing_about_memory():  # M3: a working set under four times the cache is not the roof
    roof = fold(HERE, samples(read(MB), MB / 200e9) + samples(read(64 * MB), 64 * MB / 90e9))
    with pytest.raises(ValueError, match="134 MB or more was not measured"):
        roof.device()


def test_the_roof_is_the_largest_buffer_and_the_most_threads():
    taken = [(BIG, 2, 42e9), (BIG, 1, 50e9), (BIG // 2, 2, 60e9), (MB, 2, 200e9)]
    roof = fold(HERE, [s for size, threads, rate in taken for s in samples(read(size, threads), size / rate)])
    assert roof.bandwidth == pytest.approx(42e9)
    assert [p.task.threads for p in roof.seen("read") if p.task.size == BIG] == [1, 2]


@pytest.mark.parametrize(
    "task, most",  # 3 GHz; AVX-512: 2 × 64 bytes loaded and 2 × 16 fused multiply-adds a cycle
    [
        (read(MB, threads=2), 2 * 3e9 * 128),
        (read(MB, threads=1), 3e9 * 128),
        (multiply(), 2 * 3e9 * 2 * 16 * 2),
        (multiply(dtype="bfloat16"), 2 * 3e9 * 2 * 16 * 2 * 2),
    ],
)
def test_no_more_than_cores_times_clock_times_width(task, most):  # M3
    assert limit(task, HERE) == pytest.approx(most)
    roof = fold(HERE, samples(task, task.work / (0.9 * most), task.work / (1.1 * most)))
    assert len(roof.points[0].seconds) == len(roof.points[0].rejected) == 1


def test_limits_of_other_machines():
    assert limit(multiply(), HERE | {"features": ["avx2"]}) == pytest.approx(2 * 3e9 * 32)
    assert limit(multiply(), HERE | {"clock": {"highest": None, "governor": None}}) == pytest.approx(2 * 6e9 * 64)
    assert limit(multiply(dtype="bfloat16"), HERE | {"features": ["avx2", "avx512f", "amx_bf16"]}) == pytest.approx(2 * 3e9 * 1024)
    assert limit(multiply(), HERE | {"features": ["avx2", "avx512f", "amx_bf16"]}) == pytest.approx(2 * 3e9 * 64)
    assert limit(multiply(), HERE | {"features": ["asimd"]}) == math.inf  # nothing is known: nothing is refused
    assert limit(LAUNCH, HERE) == math.inf


def test_a_gpu_is_held_to_its_data_sheet_and_not_to_its_cache():
    gpu = HERE | {"device": "cuda", "name": "NVIDIA H100 80GB HBM3", "last_level_cache": {"bytes": 50 * MB, "source": "driver"}}
    size = 800 * MB
    slow_cache = samples(read(MB, None), *[MB / 0.1e12] * 9)  # a launch takes longer than the read
    roof = fold(gpu, slow_cache + samples(read(size, None), size / 3.0e12, size / 3.1e12, size / 5e12))
    assert sorted(size / s for s in roof.read.seconds) == pytest.approx([3.0e12, 3.1e12])
    assert limit(multiply(dtype="bfloat16", threads=None), gpu) == pytest.approx(1.1 * 989.5e12)
    assert limit(multiply(threads=None), gpu | {"name": "a GPU nobody listed"}) == math.inf


def test_a_roof_survives_json():
    roof = fold(HERE, samples(read(BIG), 0.01, 0.02, -1.0) + samples(multiply(), 0.01) + [Sample(LAUNCH, math.nan, "no")])
    assert Roof.from_dict(json.loads(json.dumps(roof.to_dict(), allow_nan=False))) == roof


def test_a_roof_becomes_a_device():
    torch = pytest.importorskip("torch")
    roof = fold(HERE, samples(read(BIG), BIG / 40e9) + samples(multiply(), 2 * 1024**3 / 1e11) + samples(LAUNCH, 12e-6))
    expected = cost.Device("a CPU", bandwidth=pytest.approx(40e9), flops=pytest.approx(1e11), launch=pytest.approx(400e-6))
    assert roof.device("float32", operations=100) == expected
    assert roof.device(torch.float32).launch == 0.0
    with pytest.raises(ValueError, match="no matrix product of bfloat16"):
        roof.device(torch.bfloat16)


def test_the_roof_prints_in_ascii_and_names_its_kernels():
    roof = fold(HERE, samples(read(BIG), 0.01) + samples(read(BIG, None), 0.01) + samples(multiply(), 0.01, 0.02) + samples(LAUNCH, 12e-6, -1))
    assert str(roof).isascii()
    assert all(word in str(roof) for word in ("a loop", "mm", "536.87 MB", "2 threads", "device", "microseconds", "1 impossible", "a CPU, 2 cores"))


# ---- the band


@pytest.mark.parametrize(
    "before, after, steady", [(40e9, 40e9, True), (40e9, 47.9e9, True), (47.9e9, 40e9, True), (40e9, 48.1e9, False), (85e9, 40e9, False)]
)
def test_band(before, after, steady):
    assert band([before, before / 3, before * 1.1], [after]) == (min(before, after), max(before, after), steady)


def test_a_band_needs_both_ends():
    with pytest.raises(ValueError, match="before and after"):
        band([1.0], [])


# ---- what this machine is


def test_machine_is_json_and_keeps_nobodys_name():
    text = json.dumps(machine(), allow_nan=False)
    for private in (socket.gethostname(), getpass.getuser(), os.getcwd(), os.path.expanduser("~")):
        assert f'"{private}"' not in text and (len(private) < 5 or private not in text)
    assert "/" not in text.replace("w/", "")
    here = json.loads(text)
    assert here["ram"]["total"] >= here["ram"]["available"] > 0
    assert here["versions"]["torch"] and here["threads"]["torch"] >= 1


def test_caches_counts_every_copy_once(tmp_path, monkeypatch):
    """Two chiplets of four cores: L3 is shared by four, L2 by none, and instruction caches hold no data."""
    for cpu in range(8):
        chiplet = "0-3" if cpu < 4 else "4-7"
        kinds = [("Data", 1, "32K", cpu), ("Instruction", 1, "64K", cpu), ("Unified", 2, "1024K", cpu), ("Unified", 3, "32M", chiplet)]
        for index, (kind, level, size, sharers) in enumerate(kinds):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in {"type": kind, "level": level, "size": size, "shared_cpu_list": sharers}.items():
                (folder / name).write_text(f"{value}\n")
    monkeypatch.setattr(machine_module, "PROCESSORS", tmp_path)
    monkeypatch.setattr(machine_module.sys, "platform", "linux")
    assert caches() == {"L1": 8 * 32 << 10, "L2": 8 * MB, "L3": 64 * MB}
    assert last_level_cache() == (64 * MB, "system")


def test_an_unknown_cache_is_assumed_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_module, "PROCESSORS", tmp_path)
    monkeypatch.setattr(machine_module.sys, "platform", "linux")
    assert last_level_cache() == (32 * MB, "assumed")
    assert "(assumed)" in str(fold(HERE | {"last_level_cache": {"bytes": 32 * MB, "source": "assumed"}}, []))


@pytest.mark.parametrize("text, found", [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8), (None, 8)])
def test_a_container_may_have_fewer_cores(text, found, monkeypatch):
    monkeypatch.setattr(machine_module.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(machine_module, "_read", lambda path: text)
    assert cores() == found


@pytest.mark.parametrize("siblings, usable, found", [(["0,4", "1,5", "2,6", "3,7"] * 2, 8, 4), (list("01234567"), 8, 8), (["0-1", "2-3"] * 2, 1, 1)])
def test_hardware_threads_of_one_core_count_once(siblings, usable, found, tmp_path, monkeypatch):
    for cpu, shared in enumerate(siblings):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(shared + "\n")
    monkeypatch.setattr(machine_module, "PROCESSORS", tmp_path)
    monkeypatch.setattr(machine_module, "cores", lambda: usable)
    assert machine_module.physical_cores() == found


@pytest.mark.parametrize("free, expected", [(64 << 30, 8 * 32 * MB), (2 << 30, 256 * MB), (1 << 30, 128 * MB), (300 * MB, 128 * MB)])
def test_the_buffer_fits_the_memory(free, expected, monkeypatch):
    monkeypatch.setattr(probe_module, "last_level_cache", lambda device: (32 * MB, "system"))
    monkeypatch.setattr(probe_module, "ram", lambda: (64 << 30, free))
    assert large() == expected


def test_the_buffer_of_a_server_is_no_larger_than_it_must(monkeypatch):
    monkeypatch.setattr(probe_module, "ram", lambda: (1 << 40, 1 << 39))
    for cache, expected in ((384 * MB, 8 * 384 * MB), (900 * MB, 4 << 30), (1152 * MB, 4 * 1152 * MB)):
        monkeypatch.setattr(probe_module, "last_level_cache", lambda device, cache=cache: (cache, "system"))
        assert large() == expected


def test_no_room_for_a_buffer_past_the_cache(monkeypatch):
    monkeypatch.setattr(probe_module, "last_level_cache", lambda device: (32 * MB, "system"))
    monkeypatch.setattr(probe_module, "ram", lambda: (64 << 30, 200 * MB))
    with pytest.raises(MemoryError, match="34 MB cache takes a buffer of 134 MB, and 210 MB are free: close something"):
        large()


# ---- public devices


def test_data_sheets_are_plausible():
    assert len(DEVICES) >= 15 and {s.kind for s in DEVICES.values()} == {"gpu", "laptop", "phone", "cpu"}
    for name, sheet in DEVICES.items():
        assert sheet.name == name and 5e9 < sheet.bandwidth < 2e13 and sheet.memory >= 4 << 30
        assert any(year in sheet.source for year in map(str, range(2015, 2027)))
        assert sheet.flops and all(0.5 < flops / sheet.bandwidth < 1000 for flops in sheet.flops.values())  # FLOP per byte: the ridge
        assert sheet.flops.get("float16", 0) in (0, sheet.flops.get("bfloat16", sheet.flops.get("float16")))


def test_devices_by_name():
    h100 = device_sheet("NVIDIA H100 SXM")
    assert h100.device("bfloat16", launch=1e-3) == cost.Device("NVIDIA H100 SXM", bandwidth=3.35e12, flops=989.5e12, launch=1e-3)
    with pytest.raises(ValueError, match=r"no device is called 'NVIDIA H100'; did you mean .*NVIDIA H100 SXM"):
        device_sheet("NVIDIA H100")
    with pytest.raises(ValueError, match="Apple M1: no peak for bfloat16 is published"):
        device_sheet("Apple M1").device("bfloat16")


@pytest.mark.parametrize(
    "driver, sheet",
    [
        ("NVIDIA H100 PCIe", "NVIDIA H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB"),
        ("Tesla T4", "NVIDIA T4"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("AMD Instinct MI300X", "AMD MI300X"),
        ("Apple M1 Max", "Apple M1 Max"),
        ("Apple M1", "Apple M1"),
        ("Apple M1 Pro", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("Some Card", None),
    ],
)
def test_what_a_driver_calls_its_gpu(driver, sheet):
    assert like(driver) == (sheet and DEVICES[sheet])


# ---- and once for real


def test_a_real_probe(device):
    began = time.perf_counter()
    roof = probe(4.0, device)
    assert time.perf_counter() - began < 40  # compiling counts, and one sample of each kind is taken whatever it costs
    assert 1e9 < roof.bandwidth < 2e13
    assert roof.flops("float32") > 1e9
    assert 1e-7 < roof.launch < 1e-3
    samples_now = roof_now(0.1, device)
    assert samples_now and all(0.02 < s / roof.bandwidth < 50 for s in samples_now)
    assert replace(Roof.from_dict(json.loads(json.dumps(roof.to_dict())))) == roof


def test_without_numba_torch_reads(monkeypatch):
    monkeypatch.setattr(probe_module, "find_spec", lambda name: None)
    monkeypatch.setattr(probe_module, "large", lambda device="cpu": 16 * MB)
    found = probe_module.loads()
    reads = [load for load in found if load.task.kind == "read"]
    assert {load.task.means for load in reads} == {"torch.sum"} and len({load.task.size for load in reads}) == len(reads)
    reads[0].run(2)


def test_the_read_kernel_reads_everything():
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("numba")
    kernel, numbers = probe_module.read_kernel(), numpy.arange(1000, dtype=numpy.float32)
    sums = numpy.zeros(2, numpy.float32)
    kernel(numbers, sums, 3)
    assert sums.tolist() == [3 * sum(range(500)), 3 * sum(range(500, 1000))]
