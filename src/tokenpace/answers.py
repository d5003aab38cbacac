"""What a learner predicted, wrote and found out. It is theirs: one file in their own data folder, never in the repository, and no update touches it.

The file only grows: a line for each thing that was kept, and the last line about a thing is what holds. So two notebooks can write at once,
an interrupted write spoils one line at most, and nothing that was ever written is lost.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from math import isfinite
from pathlib import Path

KINDS = ("predictions", "exercises", "claims", "ledger")
NEEDED = {"predictions": {"value"}, "ledger": {"machine", "row"}}
FITS = {  # what is read from them; anything else that is kept with it may be anything
    "value": lambda x: isinstance(x, (int, float)) and isfinite(x),
    "done": lambda x: isinstance(x, bool),
    "tries": lambda x: isinstance(x, int),
    "state": lambda x: x in ("open", "wrong", "done", "busy"),
    "row": lambda x: isinstance(x, dict),
} | dict.fromkeys(("when", "source", "latest", "said", "machine"), lambda x: isinstance(x, str))


def path() -> Path:
    """Where the answers are: TOKENPACE_DATA, or the user's data folder."""
    if folder := os.environ.get("TOKENPACE_DATA"):
        return Path(folder).expanduser() / "answers.jsonl"
    from platformdirs import user_data_path

    return user_data_path("tokenpace") / "answers.jsonl"


def read() -> dict[str, dict[str, dict]]:
    """Everything kept: kind -> name -> value, in the order in which it was first kept.

    A file that cannot be read is put aside under another name, which is said, and a new one is begun with the lines that can.
    """
    found: dict[str, dict[str, dict]] = {kind: {} for kind in KINDS}
    try:
        if not path().exists():
            return found
        with _alone() as alone:
            read = [_one(line) for line in path().read_bytes().splitlines()]
            if alone and not all(read):
                _put_aside()
    except (OSError, RuntimeError) as error:  # RuntimeError: the home folder of nobody
        _say(f"your answers could not be read ({error}), so none are known here")
        return found
    for kind, name, value in filter(None, read):
        found.setdefault(kind, {})[name] = value
    return {kind: {name: value for name, value in of.items() if value is not None} for kind, of in found.items()}


def _one(line: bytes) -> tuple[str, str, dict | None] | None:
    """Kind, name and value; None for a line that nobody here has written."""
    try:
        one = json.loads(line)
        kind, name, value = one["kind"], one["name"], one["value"]
        if not (isinstance(kind, str) and isinstance(name, str) and isinstance(value, dict | None)):
            return None
        fits = value is None or kind not in KINDS or (value.keys() >= NEEDED.get(kind, set()) and all(FITS[k](value[k]) for k in FITS.keys() & value))
        return (kind, name, value) if fits else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def keep(kind: str, name: str, value: dict | None) -> bool:
    """Write one thing down, in place of what was kept under that name; None forgets it. Was it written? If not, it was said why.

    A measurement or a solved exercise must not be lost because a disk is full, so nothing is raised.
    """
    line = json.dumps({"kind": kind, "name": name, "value": value, "when": datetime.now().isoformat(timespec="seconds")}) + "\n"
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        with _alone(), open(path(), "ab") as file:
            if file.tell() and not _ends_well():
                file.write(b"\n")
            file.write(line.encode())
        return True
    except (OSError, RuntimeError) as error:
        _say(f"this could not be written to your answers ({error}); everything else goes on")
        return False


@contextmanager
def _alone() -> Iterator[bool]:
    """No other notebook reads or writes the answers meanwhile: half a line of theirs would look damaged. False where that cannot be had: on a file
    system without locks, in a folder where nothing can be written, beside a program that was stopped and holds the lock. Then one goes on without.
    """
    from filelock import FileLock  # comes with PyTorch

    lock = FileLock(path().with_suffix(".lock"), timeout=3)
    try:
        lock.acquire()
    except (OSError, NotImplementedError):  # a Timeout is an OSError
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _ends_well() -> bool:
    """Does the file end with a whole line?"""
    with open(path(), "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _put_aside() -> None:
    """Begin a new file with the lines that can be read. The old one is in its place until the new one is whole: a disk may be full."""
    aside = path().with_name(f"answers.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl")
    new = aside.with_suffix(".new")
    try:
        whole = path().read_bytes()
        lines = whole.splitlines()
        good = [line for line in lines if _one(line)]
        aside.write_bytes(whole)
        new.write_bytes(b"".join(line + b"\n" for line in good))
        os.replace(new, path())
    except OSError as error:
        for part in (aside, new):
            with suppress(OSError):
                part.unlink(missing_ok=True)
        return _say(f"some lines in {path()} cannot be read, and the file could not be put aside ({error})")
    bad = len(lines) - len(good)
    _say(
        f"{bad} of the lines in your answers could not be read: the old file is kept as {aside}, and a new one was begun with the {len(good)} others"
    )


def _say(what: str) -> None:
    print(f"note: {what}", file=sys.stderr)
