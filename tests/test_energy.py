"""Joules: counters as Linux and NVML show them (made-up trees and a made-up NVML), passes with a counter that a script moves, and sums by hand."""

import sys
import types
from pathlib import Path

import pytest

from tokenpace.measure import counters
from tokenpace.measure.clock import Stamped, summary
from tokenpace.measure.counters import Counter, counter, nothing
from tokenpace.measure.energy import Energy, Metered, Power, idle, joules, metered, phase, power
from tokenpace.run import Row, Step

# a made-up /sys/class/powercap --------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """tree(name, what, microjoules, range): one more domain. What Linux shows lies flat: parts stand beside their package."""
    monkeypatch.setattr(sys, "platform", "linux")

    def domain(name, what, microjoules=0, range=1000):
        folder = tmp_path / "sys/class/powercap" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in (("name", what), ("energy_uj", microjoules), ("max_energy_range_uj", range)):
            (folder / file).write_text(f"{text}\n")
        return folder / "energy_uj"

    domain.root = tmp_path
    return domain


def microjoules(meter):
    return round(1e6 * meter.joules(), 3)


def test_a_package_is_counted_from_when_it_was_opened(tree):
    file = tree("intel-rapl:0", "package-0", 700)
    meter = counter("cpu", tree.root)
    assert meter.readable and meter.name == "RAPL, 1 package" and microjoules(meter) == 0
    file.write_text("940\n")
    assert microjoules(meter) == 240 and microjoules(meter) == 240


def test_a_counter_that_starts_again(tree):
    """Against one that never does: what is shown is its remainder."""
    file = tree("intel-rapl:0", "package-0", 900, range=1000)
    meter = counter("cpu", tree.root)
    for true in (990, 1050, 1999, 2001, 2950):
        file.write_text(str(true % 1000))
        assert microjoules(meter) == true - 900


def test_two_packages_are_added_and_each_has_its_own_range(tree):
    one, two = tree("intel-rapl:0", "package-0", 90, range=100), tree("intel-rapl:1", "package-1", 990, range=1000)
    meter = counter("cpu", tree.root)
    one.write_text("5"), two.write_text("40")
    assert microjoules(meter) == 15 + 50 and meter.name == "RAPL, 2 packages"


def test_nothing_is_counted_twice(tree):
    package = tree("intel-rapl:0", "package-0-die-0", 100)
    others = [tree(name, what, 100) for name, what in (("intel-rapl:0:0", "core"), ("intel-rapl:0:1", "dram"), ("intel-rapl:1", "psys"))]
    others.append(tree("intel-rapl-mmio:0", "package-0", 100))
    meter = counter("cpu", tree.root)
    for file in others:
        file.write_text("900")
    assert microjoules(meter) == 0
    package.write_text("103")
    assert microjoules(meter) == 3


def test_what_only_root_may_read_says_so_and_what_to_do(tree, monkeypatch):
    tree("intel-rapl:0", "package-0")
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: (_ for _ in ()).throw(PermissionError()) if path.name == "energy_uj" else real(path))
    meter = counter("cpu", tree.root)
    assert not meter.readable and "only root" in meter.why and "sudo chmod a+r /sys/class/powercap" in meter.why


def test_a_counter_without_a_number(tree):
    tree("intel-rapl:0", "package-0", "much")
    assert "gives no number" in counter("cpu", tree.root).why


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("flags : fpu hypervisor avx2", "a virtual machine"),
        ("flags : fpu avx2\nmodel name : hypervisor", "shows no counter"),
        (None, "shows no counter"),
    ],
)
@pytest.mark.parametrize("other", [False, True], ids=["no powercap", "no package"])
def test_no_domain_says_why(tree, flags, why, other):
    if flags:
        (tree.root / "proc").mkdir()
        (tree.root / "proc/cpuinfo").write_text(flags + "\n")
    if other:
        tree("intel-rapl:0", "psys")
    assert why in counter("cpu", tree.root).why


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems(tree, monkeypatch, system):
    tree("intel-rapl:0", "package-0")
    monkeypatch.setattr(sys, "platform", system)
    assert "only Linux" in counter("cpu", tree.root).why and "only Linux" in counter("mps", tree.root).why


def test_nothing_raises_only_when_it_is_read():
    meter = nothing("there is none")
    assert not meter.readable
    with pytest.raises(OSError, match="not readable here: there is none"):
        meter.joules()


# a made-up NVML -------------------------------------------------------------------------------------------------------


class Refused(Exception):
    pass


@pytest.fixture
def card(monkeypatch):
    """A card whose counter stands at `card.millijoules`; `card.refuses` names the call that fails."""
    import torch

    nvml = types.SimpleNamespace(millijoules=5_000_000, refuses="", NVMLError=Refused)

    def call(name, answer):
        def called(*arguments):
            if nvml.refuses == name:
                raise Refused("Not Supported")
            return answer(*arguments)

        setattr(nvml, name, called)

    call("nvmlInit", lambda: None)
    call("nvmlDeviceGetHandleByUUID", lambda uuid: {"GPU-abc": "the second"}[uuid])
    call("nvmlDeviceGetTotalEnergyConsumption", lambda handle: {"the second": nvml.millijoules}[handle])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    known = {"cuda:1": types.SimpleNamespace(uuid="abc", name="Some GPU")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known[device])
    return nvml


def test_a_card_counts_in_millijoules(card):
    meter = counter("cuda:1")
    card.millijoules += 2500
    assert meter.readable and meter.joules() == 2.5 and meter.name == "NVML, Some GPU"


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTotalEnergyConsumption"])
def test_a_driver_that_refuses_is_a_reason(card, call):
    card.refuses = call
    assert counter("cuda:1").why == "the card's driver gives no count (Not Supported)"


def test_without_the_package_of_nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in counter("cuda").why


def test_this_machine_has_a_counter_or_a_reason():
    meter = counter()
    assert meter.readable or len(meter.why) > 20
    assert meter.why.isascii() and counters.UNLOCK.isascii()  # the doctor says it


# passes ---------------------------------------------------------------------------------------------------------------


class World:
    """A clock, and a counter that is renewed every `step` seconds, by itself; 0: always."""

    def __init__(self, step=0.0):
        self.time, self.taken, self.shown, self.counter = 0.0, 0.0, 0.0, Counter("a script", step)
        self.counter.joules = lambda: self.shown

    def spend(self, seconds, watts):
        step, end = self.counter.step, self.time + seconds
        last = int(end / step + 1e-9) * step if step else end  # when it was renewed last
        if last > self.time:
            self.shown = self.taken + (last - self.time) * watts
        self.time, self.taken = end, self.taken + seconds * watts

    def now(self):
        return self.time


PREFILL, DECODE = Step((Row(0, "prefill", 0, 4),)), Step((Row(0, "decode", 4, 1),))
MIXED = Step((Row(0, "prefill", 0, 4), Row(1, "decode", 4, 1)))


def passes(world, *plan):
    for step, seconds, watts in plan:
        world.spend(seconds, watts)
        yield Stamped(step, seconds)


def test_idle_power_is_joules_per_second():
    world = World()
    assert idle(world.counter, 2.0, lambda s: world.spend(s, 7.0), world.now) == pytest.approx(7.0)
    assert idle(nothing("no"), sleep=lambda s: 1 / 0) is None


def test_what_is_above_idle_and_what_is_all():
    found = Energy(joules=30.0, seconds=2.0, idle=5.0)
    assert (found.joules, found.watts, found.own) == (30.0, 15.0, 20.0)


def test_a_pass_has_its_own_joules_and_no_pause_has():
    world, found = World(), []
    for one in metered(passes(world, (PREFILL, 0.5, 40.0), (DECODE, 0.1, 20.0), (DECODE, 0.1, 30.0)), world.counter, world.now):
        found.append(one)
        world.spend(3.0, 100.0)  # somebody draws
    assert [joules(one) for one in found] == pytest.approx([20.0, 2.0, 3.0])
    assert [one.seconds for one in found] == [0.5, 0.1, 0.1] and all(type(one) is Metered for one in found)


def test_a_coarse_counter_loses_nothing_in_pauses_that_it_cannot_see():
    """It is renewed in a pause as often as in a pass, and what it shows then is what the pass took."""
    world, found = World(step=0.1), []
    for one in metered(passes(world, *[(DECODE, 0.03, 50.0)] * 40), world.counter, world.now):
        found.append(one)
        world.spend(0.03, 0.0)
    assert world.taken == pytest.approx(60.0) and 60.0 - sum(map(joules, found)) <= 0.1 * 50 + 1e-9
    assert any(joules(one) == 0 for one in found), "it really is coarse"


def test_where_nothing_can_be_read_passes_are_as_they_were():
    world = World()
    found = list(metered(passes(world, (DECODE, 0.1, 1.0)), nothing("no")))
    assert [type(one) for one in found] == [Stamped] and joules(found[0]) is None and power(found) == []


def test_a_metered_pass_is_a_stamped_one():
    one = Metered(DECODE, 0.5, 3.0)
    step, seconds = one
    assert (step, seconds) == (DECODE, 0.5) and one == Stamped(DECODE, 0.5) and summary([one]).seconds == 0.5


@pytest.mark.parametrize(
    ("step", "name"), [(PREFILL, "prefill"), (DECODE, "decode"), (MIXED, "both"), (Step((Row(0, "verify", 4, 3),)), "decode"), (Step(()), "decode")]
)
def test_the_phase_of_a_pass(step, name):
    assert phase(step) == name


def test_power_is_a_step_for_each_span():
    points = [Metered(PREFILL, 0.5, 20.0), Metered(DECODE, 0.1, 2.0), Metered(DECODE, 0.1, 4.0)]
    assert power(points, step=0.001) == [
        Power(0.0, 0.5, 40.0, "prefill"),
        Power(0.5, pytest.approx(0.6), pytest.approx(20.0), "decode"),
        Power(pytest.approx(0.6), pytest.approx(0.7), pytest.approx(40.0), "decode"),
    ]


def test_spans_are_as_long_as_the_counter_needs_and_never_of_two_phases():
    points = [Metered(PREFILL, 0.3, 3.0), *[Metered(DECODE, 0.2, 4.0)] * 5]
    found = power(points, step=0.1)  # spans of half a second
    assert [(round(s.start, 6), round(s.end, 6), s.phase) for s in found] == [(0, 0.3, "prefill"), (0.3, 0.9, "decode"), (0.9, 1.3, "decode")]
    assert [s.watts for s in found] == pytest.approx([10.0, 20.0, 20.0])
    assert sum((s.end - s.start) * s.watts for s in found) == pytest.approx(sum(map(joules, points)))


def test_one_pass_that_nobody_counted_leaves_no_power():
    assert power([Metered(DECODE, 0.1, 1.0), Stamped(DECODE, 0.1)]) == []


def test_a_race_counts_the_joules_of_each_decoder(monkeypatch):
    import tokenpace.race
    from tokenpace.load import load
    from tokenpace.measure.cost import Device

    class Counts(Counter):
        taken = 0.0

        def joules(self):
            self.taken += 3.0
            return self.taken

    module = sys.modules["tokenpace.race"]
    monkeypatch.setattr(module, "probe", lambda seconds, place: types.SimpleNamespace(device=lambda dtype: Device("d", 1e9, 1e9)))
    monkeypatch.setattr(module, "roof_now", lambda seconds, place: [1e9])
    monkeypatch.setattr(module, "counter", lambda device: Counts(f"of {device}", 1e9))
    lm = load("shape:15m", device="cpu", dtype="float32")
    for found in tokenpace.race.race(lm, [1, 2, 3], ("autoregressive", "uncached"), say=lambda text: None, max_new_tokens=4).entries:
        assert found.joules == 3.0
