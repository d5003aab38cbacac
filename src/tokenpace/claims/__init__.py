"""What the course is built on, claim by claim, and what this machine says to each.

A figure shows what happened; whether that bears out what the text says is left to whoever looks. Here the text's claims are a table
(course/claims.toml), each with its unit and the function that judges it on what that unit measured. `judge` keeps the verdict in the
learner's answers, `claims` shows all of them. A verdict belongs to the machine that it was measured on, and is never carried to another.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import fill

from .. import answers
from ..config import nearest
from ..measure.machine import device_name
from .verdict import HOLDS_IF, UNKNOWN, VERDICTS

COURSE = Path(__file__).resolve().parents[3] / "course"
MUST = ("name", "text", "units", "call")


@dataclass(frozen=True)
class Claim:
    """One row of the table. `call` is module:function, of which an existing unit's is there; with `holds_if` it never holds without that."""

    name: str
    text: str
    units: tuple[str, ...]
    call: str
    holds_if: str = ""

    @property
    def written(self) -> list[str]:
        """Those of its units that there are."""
        return [unit for unit in self.units if any((COURSE / "units").glob(f"{unit}_*.py"))]

    def function(self) -> Callable:
        """What judges it. NotImplementedError if that is not written yet."""
        module, _, name = self.call.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            units = " and ".join(self.units)
            raise NotImplementedError(f"claim {self.name!r} of unit {units}: {self.call} is not written yet, so nothing can judge it") from None


@dataclass(frozen=True)
class Finding:
    """A verdict on a claim, and where and when it was reached."""

    claim: str
    verdict: str  # one of VERDICTS
    condition: str  # of "holds if"
    figures: str
    numbers: dict
    machine: str
    dtype: str
    when: str  # as ISO 8601 writes it; empty where the run is a recording
    recorded: bool = False

    @property
    def says(self) -> str:
        return f"{self.verdict} {self.condition}".rstrip()

    @property
    def where(self) -> str:
        on = f"{'recorded on ' if self.recorded else ''}{self.machine}"
        return ", ".join(filter(None, (on, self.dtype, self.when[:10])))

    def __str__(self) -> str:
        return f"Claim {self.claim!r}: {self.says}.\n{self.figures} [{self.where}]"

    __repr__ = __str__


def table(path: Path = COURSE / "claims.toml") -> dict[str, Claim]:
    """All claims by name, in the order of the course. ValueError for one that has no unit, no call, no text, or a name that is taken."""
    found: dict[str, Claim] = {}
    for i, row in enumerate(tomllib.loads(path.read_text(encoding="utf-8")).get("claim", ()), 1):
        at = f"{path.name}, claim {i} ({row.get('name', 'without name')})"
        if missing := [key for key in MUST if not row.get(key)]:
            raise ValueError(f"{at} has no {' and no '.join(missing)}: a claim needs {', '.join(MUST)}")
        if strange := set(row) - {f.name for f in fields(Claim)}:
            raise ValueError(f"{at} has {', '.join(sorted(strange))}, which no claim has; there is {', '.join(f.name for f in fields(Claim))}")
        if not all(row["call"].partition(":")):
            raise ValueError(f"{at}: its call is {row['call']!r}, and must be module:function")
        if row["name"] in found:
            raise ValueError(f"{at}: the name is taken")
        found[row["name"]] = Claim(**{**row, "units": tuple(row["units"])})
    return found


def judge(name: str, *measured, machine: str = "", dtype: str = "", recorded: bool = False) -> Finding:
    """Run the function of a claim on what its unit measured, keep the finding for this machine, return it.

    machine: its name (default: this processor's); dtype: of the weights; recorded: the run was replayed, so nothing is kept.
    A run that allows no verdict does not take the place of one that did. ValueError for a name that is not in the table.
    """
    known = table()
    if name not in known:
        raise ValueError(f"there is no claim {name!r} in course/claims.toml{nearest(name, known)}")
    found = known[name].function()(*measured).given(known[name].holds_if)
    when = "" if recorded else datetime.now().astimezone().isoformat(timespec="seconds")
    finding = Finding(name, found.verdict, found.condition, found.figures, found.numbers, machine or device_name(), dtype, when, recorded)
    if not recorded and not (found.verdict == UNKNOWN and (name, finding.machine) in _kept()):
        answers.keep("claims", f"{name} on {finding.machine}", asdict(finding))
    return finding


def claims() -> Claims:
    """Every claim of the course with what was found on this machine; what was found on others stands below, under their names.

    >>> [claim.name for claim, mine, others in claims().rows][:2]
    ['hierarchy', 'bandwidth']
    """
    found, here, rows = _kept(), _here(), []
    for claim in table().values():
        mine = [f for (name, at), f in found.items() if name == claim.name and at in here]
        others = tuple(f for (name, at), f in found.items() if name == claim.name and at not in here)
        rows.append((claim, max(mine, key=lambda f: f.when, default=None), others))
    return Claims(here, tuple(rows))


@dataclass(frozen=True)
class Claims:
    """The table: each claim with the finding of this machine (None: there is none) and those of others. Prints as text, in a notebook as a table."""

    here: tuple[str, ...]  # the devices of this machine
    rows: tuple[tuple[Claim, Finding | None, tuple[Finding, ...]], ...]

    @property
    def title(self) -> str:
        count = Counter(mine.verdict if mine else UNKNOWN for _, mine, _ in self.rows)
        told = ", ".join(f"{verdict}{' …' * (verdict == HOLDS_IF)} {count[verdict]}" for verdict in VERDICTS)
        return f"{len(self.rows)} claims on {' and '.join(self.here)}: {told}."

    def __str__(self) -> str:
        lines, wrapped = [self.title], partial(fill, width=110, initial_indent=" " * 8, subsequent_indent=" " * 8)
        for claim, mine, others in self.rows:
            lines += ["", f"{' '.join(claim.units):7} {claim.name}: {_says(claim, mine)}", wrapped(claim.text)]
            lines += [wrapped(text) for text in _figures(mine, others)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        rows = [("unit", "claim", "here", "figures"), ("---",) * 4]
        for claim, mine, others in self.rows:
            cells = (" ".join(claim.units), f"**{claim.name}**: {claim.text}", _says(claim, mine), "<br>".join(_figures(mine, others)))
            rows.append(tuple(cell.replace("|", "\\|") for cell in cells))
        return f"{self.title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _says(claim: Claim, mine: Finding | None) -> str:
    if mine:
        return mine.says
    return f"{UNKNOWN} ({f'run unit {claim.written[0]}' if claim.written else f'unit {claim.units[0]} is not there yet'})"


def _figures(mine: Finding | None, others: tuple[Finding, ...]) -> list[str]:
    return [f"{f.figures} [{f.where}]" for f in (mine,) if f] + [f"Elsewhere: {f.says}. {f.figures} [{f.where}]" for f in others]


def _kept() -> dict[tuple[str, str], Finding]:
    """What the answers hold, by claim and machine. An entry that is no finding is passed over: it was not written here."""
    names, found = {f.name for f in fields(Finding)}, {}
    for value in answers.read()["claims"].values():
        texts = [value.get(name) for name in names - {"numbers", "recorded"}]
        if set(value) == names and all(isinstance(text, str) for text in texts) and value["verdict"] in VERDICTS:
            found[value["claim"], value["machine"]] = Finding(**value)
    return found


def _here() -> tuple[str, ...]:
    """The names of this machine's devices: its processor, and a GPU if there is one."""
    import torch

    return (device_name(), *([device_name("cuda")] if torch.cuda.is_available() else []))
