"""A measured run as a file: raw seconds, the passes they belong to, and the machine, so that every figure can be drawn again elsewhere.

One JSON object per line. The first says what this is and where it ran, each further one is a stamped Step, the last closes the run with
the roof before and after it. A file without its last line was interrupted, and is as good as far as it goes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from pathlib import Path

from ..run import Row, Step
from .clock import Stamped
from .energy import Metered, joules

VERSION = 1
_DEFAULTS = {cls: {f.name: f.default for f in fields(cls)} for cls in (Row, Step)}


@dataclass(frozen=True)
class Trace:
    """A run that was read back. Iterating gives it as the stream it was, for `summary` and for every figure."""

    machine: dict
    about: dict
    stamped: tuple[Stamped, ...]
    roof: dict[str, tuple[float, ...]]  # "before" and "after" in bytes per second, where they were probed
    warning: str = ""  # what is missing at the end of an interrupted run

    def __iter__(self) -> Iterator[Stamped]:
        return iter(self.stamped)

    def __len__(self) -> int:
        return len(self.stamped)


class Recorder:
    """Writes a run while it happens, line by line, so that whatever ends it leaves a file that can be read.

        with Recorder("run.jsonl", machine(), model="smollm2-135m") as record:
            for stamped in record(timed(steps)):
                ...

    An existing file is never overwritten (FileExistsError). Set `record.roof` to keep the probes of before and after.
    """

    def __init__(self, path: str | Path, machine: dict, **about):
        self.path, self.roof, self.steps = Path(path), {}, 0
        first = _line({"tokenpace": "trace", "version": VERSION, "machine": machine, "about": about})
        try:
            self._file = open(self.path, "x", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by __exit__)
        except FileExistsError:
            raise FileExistsError(f"{self.path} exists and is kept: record into another file, or move it away") from None
        self._put(first)

    def add(self, stamped: Stamped) -> None:
        """One more line, or a ValueError for seconds that `read` would refuse; what is written already stays as it is."""
        seconds = float(stamped.seconds)
        if not isfinite(seconds) or seconds < 0:
            raise ValueError(f"{self.path}: step {self.steps + 1} took {seconds} s, which is no time: a trace keeps finite seconds of at least 0")
        counted = {} if joules(stamped) is None else {"joules": float(joules(stamped))}
        self._put(_line({"seconds": seconds, **counted, **_brief(stamped.step)}))
        self.steps += 1

    def __call__(self, stamped: Iterable[Stamped]) -> Iterator[Stamped]:
        """The same stream, recorded as it passes."""
        for one in stamped:
            self.add(one)
            yield one

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        try:
            self._put(_line({"end": "interrupted" if kind else "complete", "steps": self.steps, "roof": self.roof}))
        finally:
            self._file.close()

    def _put(self, line: str) -> None:
        self._file.write(line)
        self._file.flush()


def write(path: str | Path, stamped: Iterable[Stamped], machine: dict, roof: dict | None = None, **about) -> None:
    """Keep a whole run. The file appears complete or, if anything fails on the way, not at all.

    roof: {"before": bytes per second, "after": …}, from `roof_now`. about: whatever else explains the run, JSON-able.
    """
    path = Path(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with Recorder(partial, machine, **about) as record:
            record.roof = roof or {}
            for one in stamped:
                record.add(one)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read(path: str | Path) -> Trace:
    """Read a run back: Steps equal to those that were written. ValueError with the line for anything that is not a trace."""
    lines = Path(path).read_bytes().split(b"\n")
    cut = lines.pop()  # what follows the last newline: nothing, unless writing was cut short
    if not lines:
        raise ValueError(f"{path}: no line is complete, so this is not a trace")
    head = _object(path, 1, lines[0])
    if head.get("tokenpace") != "trace" or not isinstance(head.get("machine"), dict) or not isinstance(head.get("about"), dict):
        raise ValueError(f'{path} line 1: not a tokenpace trace; its first line would say {{"tokenpace": "trace", …}}')
    if head.get("version") != VERSION:
        raise ValueError(f"{path} line 1: a trace of version {head.get('version')!r}, and this tokenpace reads {VERSION}: update tokenpace")
    body = [_object(path, i, line) for i, line in enumerate(lines[1:], 2)]
    foot = body.pop() if body and "end" in body[-1] else None
    stamped = tuple(_stamped(path, i, saved) for i, saved in enumerate(body, 2))
    if foot and foot.get("steps") != len(stamped):
        raise ValueError(f"{path} line {len(lines)}: the run had {foot.get('steps')!r} steps, and {len(stamped)} are here: lines were lost or added")
    return Trace(head["machine"], head["about"], stamped, _roof(path, len(lines), foot), _warning(len(stamped), foot, cut))


def _warning(steps: int, foot: dict | None, cut: bytes) -> str:
    if foot and foot["end"] == "complete" and not cut:
        return ""
    lost = "; its last line was cut short and is dropped" if cut else ""
    return f"the run was interrupted after {steps} steps{lost}"


def _roof(path, number: int, foot: dict | None) -> dict[str, tuple[float, ...]]:
    try:
        return {when: tuple(float(sample) for sample in samples) for when, samples in (foot or {}).get("roof", {}).items()}
    except (TypeError, ValueError, AttributeError):
        raise ValueError(f"{path} line {number}: the roof must be lists of bytes per second by name") from None


def _object(path, number: int, line: bytes) -> dict:
    try:
        found = json.loads(line)
    except ValueError:  # not UTF-8 either
        raise ValueError(f"{path} line {number}: not JSON: {line[:60]!r}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} line {number}: a JSON object was expected, not {line[:60]!r}")
    return found


def _stamped(path, number: int, saved: dict) -> Stamped:
    saved = dict(saved)
    try:
        seconds, rows, counted = saved.pop("seconds"), saved.pop("rows"), saved.pop("joules", None)
        if not isinstance(seconds, float) or not isfinite(seconds) or seconds < 0:
            raise ValueError(f"seconds are {seconds!r}")
        if counted is not None and not (isinstance(counted, float) and isfinite(counted) and counted >= 0):
            raise ValueError(f"joules are {counted!r}")
        step = Step(rows=tuple(Row(**_tuples(row)) for row in rows), **_tuples(saved))
        return Stamped(step, seconds) if counted is None else Metered(step, seconds, counted)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} line {number}: not a stamped step: {error}") from None


def _tuples(saved: dict) -> dict:
    """JSON knows lists only; a Step holds tuples only."""
    return {name: _tuple(value) for name, value in saved.items()}


def _tuple(value):
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _brief(step: Step) -> dict:
    """A Step without what is as by default: most rows of a long run differ from it in a few fields."""
    return _set_fields(step, skip="rows") | {"rows": [_set_fields(row) for row in step.rows]}


def _set_fields(item, skip: str = "") -> dict:
    found = {name: getattr(item, name) for name in _DEFAULTS[type(item)] if name != skip}
    return {name: value for name, value in found.items() if _DEFAULTS[type(item)][name] is MISSING or value != _DEFAULTS[type(item)][name]}


def _line(found: dict) -> str:
    """One line of JSON. Numbers of torch or numpy become Python's; what else does not fit is a TypeError that names it."""
    return json.dumps(found, separators=(",", ":"), default=_plain) + "\n"


def _plain(value):
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a trace keeps numbers, texts, lists and dicts, not {type(value).__name__}: {value!r}")
