"""A read that a learner times: it reads what it is told to, and refuses what is no size."""

import pytest

from tokenpace.measure import reading


def test_it_reads_as_many_bytes_as_it_was_told(monkeypatch):
    read_of = []

    def fake(buffer):
        return "a loop", lambda numbers, threads: lambda times: read_of.append((buffer.numel(), float(buffer.min()), numbers, threads, times)), 2

    monkeypatch.setattr(reading, "_reader", fake)
    read = reading.reader()
    read(4096)
    read(4096)
    read(1024)
    assert read_of == [(1024, 1.0, 1024, 2, 1)] * 2 + [(256, 1.0, 256, 2, 1)]


def test_the_real_one_takes_longer_for_more():
    import time

    read, took = reading.reader(), {}
    for size in (1 << 16, 1 << 28):
        read(size)
        start = time.perf_counter()
        read(size)
        took[size] = time.perf_counter() - start
    assert took[1 << 28] > 4 * took[1 << 16]


@pytest.mark.parametrize("size", [0, -1, 63, 100.5, True])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(ValueError, match="whole number of bytes"):
        reading.reader()(size)


def test_more_than_there_is_is_refused():
    with pytest.raises(MemoryError, match="take a smaller one"):
        reading.reader()(1 << 60)
