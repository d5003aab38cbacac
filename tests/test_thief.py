"""The thief reads while it is open, and is gone afterwards."""

import threading
import time

import numpy as np
import pytest

from tokenpace.measure import thief as thief_module
from tokenpace.measure.thief import adder, thief


def thieves():
    return [t for t in threading.enumerate() if t.name.startswith("thief")]


def wait_for(condition):
    deadline = time.perf_counter() + 20
    while not condition():
        assert time.perf_counter() < deadline
        time.sleep(0.005)


@pytest.fixture(params=["numba", "numpy"])
def means(request, monkeypatch):
    if request.param == "numba":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(thief_module, "find_spec", lambda name: None)
    adder.cache_clear()
    yield request.param
    adder.cache_clear()


@pytest.mark.parametrize("kind", ["memory", "compute"])
def test_a_thief_reads_while_it_is_open(kind, means, monkeypatch):
    monkeypatch.setitem(thief_module.BUFFERS, "memory", lambda: 16 << 20)
    with thief(kind) as loot:
        wait_for(lambda: loot.bytes > 0)
        assert len(thieves()) == 1 and loot.rate > 0
    after = loot.bytes
    assert thieves() == [] and after % thief_module.BUFFERS[kind]() == 0
    time.sleep(0.02)
    assert loot.bytes == after


def test_a_thief_ends_with_what_it_stole_from(monkeypatch):
    with pytest.raises(KeyboardInterrupt), thief("compute"):
        raise KeyboardInterrupt
    assert thieves() == []


def test_an_unknown_thief():
    with pytest.raises(ValueError, match="a thief takes memory or compute, not 'time'"), thief("time"):
        pass


def test_every_number_is_read_in_every_round(means):
    assert adder()(np.arange(1000, dtype=np.float32), 3) == 3 * sum(range(1000))
