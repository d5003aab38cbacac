"""Probed samples as a file: what comes back is what was put in, and a file that is anything else is refused by line."""

import math

import pytest

from tokenpace.measure.roof import Sample, Task
from tokenpace.measure.samples import Samples, read, save

READ = Task("read", 1 << 20, "float32", 2, "a loop", float(1 << 20))
PRODUCT = Task("gemv", 128, "bfloat16", None, "tiled", 128.0)
LANES = {"probe": [Sample(READ, 0.25), Sample(READ, math.nan, "no room")], "gemv": [Sample(PRODUCT, 1e-6)], "empty": []}


@pytest.fixture
def path(tmp_path):
    save(tmp_path / "00_roof.samples.jsonl", Samples({"name": "a test"}, LANES))
    return tmp_path / "00_roof.samples.jsonl"


def test_what_comes_back_is_what_was_kept(path):
    back = read(path)
    assert back.machine == {"name": "a test"} and list(back.lanes) == ["probe", "gemv", "empty"]
    assert back.lanes["probe"][0] == LANES["probe"][0] and back.lanes["gemv"] == LANES["gemv"] and back.lanes["empty"] == []
    assert back.lanes["probe"][1].error == "no room" and math.isnan(back.lanes["probe"][1].seconds)


def test_saving_again_gives_the_same_bytes_and_leaves_no_scraps(path):
    first = path.read_bytes()
    save(path, read(path))
    assert path.read_bytes() == first and list(path.parent.iterdir()) == [path]


def test_what_cannot_be_kept_leaves_the_older_file(path):
    first = path.read_bytes()
    with pytest.raises(TypeError):
        save(path, Samples({"name": object()}, LANES))
    assert path.read_bytes() == first and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [], 1),
        (lambda lines: ["{"], 1),
        (lambda lines: [lines[0].replace("samples", "trace"), *lines[1:]], 1),
        (lambda lines: [lines[0].replace('"version":1', '"version":2'), *lines[1:]], 1),
        (lambda lines: [*lines[:2], lines[2].replace("probe", "prob"), *lines[3:]], 3),
        (lambda lines: [*lines[:3], lines[3].replace('"task":1', '"task":7'), *lines[4:]], 4),
        (lambda lines: lines[:-1], 4),
        (lambda lines: [*lines[:2], *lines[3:]], 4),
        (lambda lines: [*lines[:2], "[]", *lines[3:]], 3),
    ],
)
def test_anything_else_is_refused_with_its_line(path, change, line):
    path.write_text("\n".join(change(path.read_text(encoding="utf-8").splitlines())), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"line {line}: not saved samples"):
        read(path)
