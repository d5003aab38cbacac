"""A run that was written reads back as the same Steps, and a file that is anything else says what and where."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenpace.measure.clock import Stamped, summary
from tokenpace.measure.energy import Metered, joules
from tokenpace.measure.trace import Recorder, read, write
from tokenpace.run import Row, Step

HERE = {"device": "cpu", "cores": 2}

write_of = st.tuples(st.integers(0, 5000), st.integers(0, 200_000), st.booleans())
writes = st.lists(write_of, max_size=4).map(tuple)
rows = st.builds(
    Row,
    request=st.integers(0, 99),
    phase=st.sampled_from(["prefill", "decode", "draft", "verify", "refine"]),
    context=st.integers(0, 10_000),
    width=st.integers(0, 600),
    writes=writes | st.lists(writes, max_size=3).map(tuple),
    branch=st.integers(0, 7),
    parents=st.none() | st.lists(st.integers(0, 7), max_size=3).map(tuple),
    finish=st.sampled_from([None, "stop", "length", "end", "cancelled", "error"]),
    logprobs=st.lists(st.floats(-50, 0) | st.just(float("-inf")), max_size=3).map(tuple),
)
steps = st.builds(
    Step,
    rows=st.lists(rows, max_size=4).map(tuple),
    to=st.sampled_from(["target", "draft", "exit", "übung"]),
    shape=st.lists(st.tuples(*[st.integers(1, 9999)] * 3), max_size=2).map(tuple),
)
runs = st.lists(st.builds(Stamped, steps, st.floats(0, 1e4)), max_size=6)

DECODE = [
    Stamped(Step((Row(0, "prefill", 0, 7, ((7, 11, True),)),), shape=((1, 7, 7),)), 0.05),
    Stamped(Step((Row(0, "decode", 7, 1, ((8, 12, True),)),), shape=((1, 1, 8),)), 0.02),
    Stamped(Step((Row(0, "decode", 8, 1, ((9, 2, True),), finish="stop"),), shape=((1, 1, 9),)), 0.03),
]


@given(runs)
@settings(max_examples=60, deadline=None)
def test_steps_read_back_equal(tmp_path_factory, run):
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    write(path, run, HERE, roof={"before": [40e9, 41e9], "after": (42e9,)}, model="x", prompt="“é”")
    trace = read(path)
    assert list(trace) == run and len(trace) == len(run)
    assert all(type(a.step) is Step and hash(a.step) == hash(b.step) for a, b in zip(trace, run))  # tuples throughout: a list has no hash
    assert all(type(one) is Stamped for one in trace)
    assert trace.machine == HERE and trace.about == {"model": "x", "prompt": "“é”"} and trace.warning == ""
    assert trace.roof == {"before": (40e9, 41e9), "after": (42e9,)}
    assert os.listdir(path.parent) == ["run.jsonl"]


def test_a_replayed_run_has_the_same_summary(tmp_path):
    write(tmp_path / "a", DECODE, HERE)
    assert summary(read(tmp_path / "a")) == summary(DECODE)


def test_the_file_is_one_json_object_a_line_and_its_head_says_what_it_is(tmp_path):
    write(tmp_path / "a", iter(DECODE), HERE, roof={"before": [1.0]}, model="m")
    lines = [json.loads(line) for line in (tmp_path / "a").read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {"tokenpace": "trace", "version": 1, "machine": HERE, "about": {"model": "m"}}
    row = {"request": 0, "phase": "decode", "context": 7, "width": 1, "writes": [[8, 12, True]]}
    assert lines[2] == {"seconds": 0.02, "shape": [[1, 1, 8]], "rows": [row]}
    assert lines[-1] == {"end": "complete", "steps": 3, "roof": {"before": [1.0]}}


def test_joules_are_kept_where_there_were_any(tmp_path):
    write(tmp_path / "a", [Metered(*DECODE[0], 1.5), DECODE[1], Metered(*DECODE[2], 0.0)], HERE)
    found = list(read(tmp_path / "a"))
    assert found == DECODE and [joules(one) for one in found] == [1.5, None, 0.0]
    assert [json.loads(line).get("joules") for line in (tmp_path / "a").read_text().splitlines()[1:-1]] == [1.5, None, 0.0]


@pytest.mark.parametrize("counted", ["-1.0", "NaN", "true", '"3"'])
def test_joules_that_nobody_counted_are_refused(tmp_path, counted):
    write(tmp_path / "a", [Metered(*DECODE[0], 1.5)], HERE)
    (tmp_path / "a").write_text((tmp_path / "a").read_text().replace('"joules":1.5', f'"joules":{counted}'))
    with pytest.raises(ValueError, match="line 2: not a stamped step: joules are"):
        read(tmp_path / "a")


def test_numbers_of_torch_and_numpy_become_plain(tmp_path):
    import numpy as np
    import torch

    step = Step((Row(0, "decode", np.int64(3), 1, ((torch.tensor(4), np.int32(5), True),), logprobs=(np.float32(-0.5),)),))
    write(tmp_path / "a", [Stamped(step, np.float64(0.1))], HERE, load=np.float32(0.25))
    trace = read(tmp_path / "a")
    assert trace.stamped == (Stamped(Step((Row(0, "decode", 3, 1, ((4, 5, True),), logprobs=(-0.5,)),)), 0.1),)
    assert trace.about == {"load": 0.25}


# ---- what goes wrong while writing


def test_a_write_that_fails_leaves_nothing(tmp_path):
    def broken():
        yield DECODE[0]
        raise RuntimeError("the model broke")

    (tmp_path / "old").write_text("kept")
    for name in ("new", "old"):
        with pytest.raises(RuntimeError, match="the model broke"):
            write(tmp_path / name, broken(), HERE)
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "kept"


def test_what_json_cannot_hold_is_named_and_nothing_is_written(tmp_path):
    with pytest.raises(TypeError, match="lists and dicts, not object"):
        write(tmp_path / "a", DECODE, HERE, what=object())
    with pytest.raises(TypeError, match="not set"):
        Recorder(tmp_path / "b", HERE, what={1, 2})
    assert os.listdir(tmp_path) == []


def test_a_whole_trace_replaces_the_old_one_a_recorder_never_does(tmp_path):
    write(tmp_path / "a", DECODE, HERE)
    write(tmp_path / "a", DECODE[:1], HERE)
    assert len(read(tmp_path / "a")) == 1
    with pytest.raises(FileExistsError, match="exists and is kept: record into another file"):
        Recorder(tmp_path / "a", HERE)
    assert len(read(tmp_path / "a")) == 1


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write(tmp_path / "nowhere" / "a", DECODE, HERE)


def test_a_recorder_passes_the_stream_on(tmp_path):
    with Recorder(tmp_path / "a", HERE, model="m") as record:
        assert list(record(iter(DECODE))) == DECODE
        record.roof = {"before": (1.0,), "after": (2.0,)}
    trace = read(tmp_path / "a")
    assert list(trace) == DECODE and trace.roof == {"before": (1.0,), "after": (2.0,)} and not trace.warning


def test_each_step_is_on_disk_as_soon_as_it_is_added(tmp_path):
    with Recorder(tmp_path / "a", HERE) as record:
        for count, stamped in enumerate(DECODE, 1):
            record.add(stamped)
            trace = read(tmp_path / "a")
            assert list(trace) == DECODE[:count] and trace.warning == f"the run was interrupted after {count} steps"


def test_an_interrupt_keeps_the_run(tmp_path):
    with pytest.raises(KeyboardInterrupt), Recorder(tmp_path / "a", HERE) as record:
        record.add(DECODE[0])
        record.roof = {"before": (1.0,)}
        raise KeyboardInterrupt
    trace = read(tmp_path / "a")
    assert list(trace) == DECODE[:1] and trace.roof == {"before": (1.0,)} and trace.warning == "the run was interrupted after 1 steps"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_seconds_that_are_no_time_are_refused_and_nothing_is_lost(tmp_path, seconds):
    with Recorder(tmp_path / "a", HERE) as record:
        record.add(DECODE[0])
        with pytest.raises(ValueError, match=r"a: step 2 took .* is no time"):
            record.add(DECODE[1]._replace(seconds=seconds))
        record.add(DECODE[2])
    trace = read(tmp_path / "a")
    assert list(trace) == [DECODE[0], DECODE[2]] and not trace.warning
    with pytest.raises(ValueError, match=r"step 1 took .* is no time"):
        write(tmp_path / "b", [DECODE[0]._replace(seconds=seconds)], HERE)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# ---- what a file can be


def test_a_trace_cut_anywhere_reads_up_to_there(tmp_path):
    write(tmp_path / "whole", DECODE, HERE, prompt="“é”")
    data, path = (tmp_path / "whole").read_bytes(), tmp_path / "cut"
    head = data.index(b"\n") + 1
    for size in range(len(data)):
        path.write_bytes(data[:size])
        if size < head:
            with pytest.raises(ValueError, match="no line is complete"):
                read(path)
            continue
        complete = data[:size].count(b"\n") - 1
        trace = read(path)
        assert list(trace) == DECODE[:complete]
        assert trace.warning.startswith(f"the run was interrupted after {complete} steps")
        assert ("cut short" in trace.warning) == (not data[:size].endswith(b"\n"))


def test_a_line_begun_after_the_end_is_dropped_and_said(tmp_path):
    write(tmp_path / "a", DECODE, HERE)
    with open(tmp_path / "a", "ab") as file:
        file.write(b'{"sec')
    trace = read(tmp_path / "a")
    assert list(trace) == DECODE and "its last line was cut short and is dropped" in trace.warning


def lines_of(tmp_path):
    write(tmp_path / "whole", DECODE, HERE)
    return (tmp_path / "whole").read_text().splitlines(keepends=True)


@pytest.mark.parametrize(
    "line, replaced, message",
    [
        (1, '{"name": "other"}\n', "line 1: not a tokenpace trace"),
        (1, '{"tokenpace": "trace", "version": 2, "machine": {}, "about": {}}\n', "line 1: a trace of version 2, and this tokenpace reads 1: update"),
        (1, "request,seconds\n", "line 1: not JSON"),
        (1, "[1, 2]\n", "line 1: a JSON object was expected"),
        (3, '{"seconds": 0.1, "rows": [{"req\n', "line 3: not JSON"),
        (3, "\n", "line 3: not JSON"),
        (3, "3\n", "line 3: a JSON object was expected"),
        (3, '{"rows": []}\n', "line 3: not a stamped step: 'seconds'"),
        (3, '{"seconds": 0.1}\n', "line 3: not a stamped step: 'rows'"),
        (3, '{"seconds": "0.1", "rows": []}\n', "line 3: not a stamped step: seconds are '0.1'"),
        (3, '{"seconds": -0.1, "rows": []}\n', "line 3: not a stamped step: seconds are -0.1"),
        (3, '{"seconds": NaN, "rows": []}\n', "line 3: not a stamped step: seconds are nan"),
        (3, '{"seconds": 0.1, "rows": [], "colour": 1}\n', "line 3: not a stamped step: .*colour"),
        (3, '{"seconds": 0.1, "rows": [{"request": 0}]}\n', "line 3: not a stamped step: .*phase"),
        (3, '{"seconds": 0.1, "rows": ["row"]}\n', "line 3: not a stamped step"),
        (3, '{"seconds": 0.1, "rows": 7}\n', "line 3: not a stamped step"),
        (3, "", "line 4: the run had 3 steps, and 2 are here"),
        (3, '{"seconds": 0.1, "rows": []}\n' * 2, "line 6: the run had 3 steps, and 4 are here"),
        (3, '{"end": "complete", "steps": 1, "roof": {}}\n', "line 3: not a stamped step"),
        (5, '{"end": "complete", "steps": 3, "roof": {"before": 3}}\n', "line 5: the roof must be lists"),
        (5, '{"end": "complete", "steps": 3, "roof": [4]}\n', "line 5: the roof must be lists"),
    ],
)
def test_a_foreign_or_damaged_line_is_named(tmp_path, line, replaced, message):
    lines = lines_of(tmp_path)
    lines[line - 1] = replaced
    (tmp_path / "bad.jsonl").write_text("".join(lines))
    with pytest.raises(ValueError, match=r"bad\.jsonl " + message):
        read(tmp_path / "bad.jsonl")


@pytest.mark.parametrize("data", [b"", b"GGUF\x03\x00\x00\x00", b"\x80\x04\x95\n\xff\n", b"\n"])
def test_a_file_that_is_no_trace_at_all(tmp_path, data):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError, match=r"no line is complete|line 1: not JSON"):
        read(tmp_path / "a")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        read(tmp_path / "missing")
