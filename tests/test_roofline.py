"""The view of unit 00: ceilings and products from made-up samples, checked against arithmetic done by hand."""

from types import SimpleNamespace

import pytest

from tokenpace.measure.roof import Band, Sample, Task
from tokenpace.show import roofline as module
from tokenpace.show.live import watch
from tokenpace.show.roofline import Roofline, gemvs

MACHINE = {
    "device": "cpu",
    "name": "a test",
    "cores": 2,
    "features": [],
    "clock": {"highest": None},
    "caches": {"L1": 1 << 16, "L3": 1 << 25},
    "last_level_cache": {"bytes": 1 << 25, "source": "system"},
}


def read(size, rate, threads=2):
    return Sample(Task("read", size, "float32", threads, "a loop", float(size)), size / rate)


def multiply(dtype, rate):
    return Sample(Task("multiply", 512, dtype, 2, "mm", 2.0 * 512**3), 2.0 * 512**3 / rate)


def gemv(n, seconds, means="tiled kernel"):
    return Sample(Task("gemv", 2 * n * n, "bfloat16", 2, means, 2.0 * n * n), seconds)


LAUNCH = Sample(Task("launch", 3, "float32", 2, "three", 3.0), 3 * 2e-6)
PROBED = [read(1 << 28, 40e9), read(1 << 28, 20e9, threads=1), read(1 << 20, 100e9), multiply("float32", 200e9), multiply("bfloat16", 400e9), LAUNCH]


def roofline(probe=PROBED, products=(), guess=None, after=None):
    view = Roofline(MACHINE, planned=8, guess=guess, where="here")
    roofs = iter([[40e9] * 3, [after] * 3])
    return view, watch(view, {"probe": probe, "gemv": products}, roof=(lambda: next(roofs)) if after else None)


def test_the_ceilings_are_those_of_the_samples():
    view, shown = roofline()
    assert view.ceilings() == pytest.approx({"launch": 2e-6, "bandwidth": 40e9, "float32": 200e9, "bfloat16": 400e9})
    assert (
        shown.sentence == "a test: memory reads 40 GB/s (no prediction), float32 multiplies 200 GFLOP/s, bfloat16 multiplies 400 GFLOP/s, "
        "an operation takes 2.00 µs to launch. [here]"
    )


def lines(ax):
    return {line.get_label(): [list(data) for data in line.get_data()] for line in ax.lines}


def test_reads_are_drawn_by_size_and_threads():
    view, _ = roofline()
    found = lines(view.ax["reads"])
    assert found["2 threads"] == [[1 << 20, 1 << 28], pytest.approx([100e9, 40e9])] and found["1 thread"] == [[1 << 28], pytest.approx([20e9])]


def test_the_roof_bends_at_the_ridge():
    view, _ = roofline()
    x, y = lines(view.ax["roof"])["bfloat16: ridge at 10"]
    assert x[1] == pytest.approx(10) and y[1:] == pytest.approx([400e9, 400e9]) and y[0] == pytest.approx(x[0] * 40e9)


def test_products_land_at_their_bytes_and_their_median():
    view, shown = roofline(
        products=[gemv(1000, 3e-6), gemv(10_000, 5e-3), gemv(10_000, 7e-3), gemv(10_000, 6e-3), gemv(1000, float("nan"))._replace(error="none")]
    )
    found = lines(view.ax["products"])
    assert found["measured: tiled kernel, bfloat16"] == [[2e6, 2e8], [3e-6, 6e-3]]
    assert found["launch"][1] == pytest.approx([2e-6] * 2) and found["bandwidth of memory"] == [[1e6, 4e8], pytest.approx([1e6 / 40e9, 4e8 / 40e9])]
    assert found["compute in bfloat16"][1] == pytest.approx([1e6 / 400e9, 4e8 / 400e9])
    assert "The largest matrix, 200 MB of bfloat16, is read by tiled kernel 33 GB/s, 83% of that." in shown.sentence


def test_the_largest_product_is_told_of_every_kernel():
    _, shown = roofline(products=[gemv(1000, 1e-6), gemv(10_000, 5e-3), gemv(10_000, 1e-2, "F.linear")])
    assert "is read by tiled kernel 40 GB/s, 100% of that and by F.linear 20 GB/s, 50% of that." in shown.sentence
    _, shown = roofline(products=[gemv(10_000, 4e-3)])
    assert "is read by tiled kernel 50 GB/s, no less than the probe itself." in shown.sentence


def test_an_interrupt_while_the_matrices_are_made_leaves_a_figure(monkeypatch):
    def gemvs(device):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "gemvs", gemvs)
    lm = SimpleNamespace(device="cpu")
    unit = SimpleNamespace(size=lambda quick, full: quick, lm=lm, sample=lambda name, lanes: lanes(), machine=MACHINE, where="", roof=None)
    shown = module.roofline(unit)
    assert "Interrupted: 0 points kept" in shown.sentence and shown.points == {"probe": []}


def test_the_learners_prediction_stands_beside_what_was_probed():
    view, shown = roofline(guess=25e9)
    assert lines(view.ax["reads"])["your prediction"][1] == [25e9, 25e9] and "memory reads 40 GB/s (you said 25)" in shown.sentence


def test_a_roof_that_moved_judges_no_product():
    view, shown = roofline(products=[gemv(10_000, 5e-3)], after=80e9)
    assert view.band == Band(40e9, 80e9, False) and "No verdict: the roof moved" in shown.sentence and "largest matrix" not in shown.sentence
    assert len(view.ax["reads"].patches) == 1
    assert "largest matrix" in roofline(products=[gemv(10_000, 5e-3)], after=42e9)[1].sentence


def test_a_probe_that_differs_from_the_roof_around_it_judges_no_product():
    slow = [read(1 << 28, 20e9), *PROBED[1:]]
    _, shown = roofline(slow, products=[gemv(10_000, 5e-3)], after=42e9)
    assert "No verdict: the roof moved between 20 and 42 GB/s" in shown.sentence


def test_it_draws_what_there_is_so_far():
    for n in range(len(PROBED) + 1):
        view, shown = roofline(PROBED[:n])
        assert view.progress() == n / 8 and bool(n) is ("Nothing" not in shown.sentence)
    roofline([], [gemv(100, 1e-5)])


def test_gemvs_are_products_of_one_vector():
    import torch

    torch.set_grad_enabled(False)
    loads = gemvs(largest=1 << 16)
    assert [load.task.size for load in loads] == [2 * n * n for n in (64, 64, 128, 128)] and {load.task.means for load in loads} == {
        "F.linear",
        "tiled kernel",
    }
    assert all(load.task.work == load.task.size for load in loads)  # 2 n² FLOP of 2 n² bytes
    for load in loads:
        assert load.run(2) is None
