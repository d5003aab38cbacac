"""An exercise is a part of this package that somebody else writes again: the stub is its signature and docstring, the solution is its body, and
what the learner wrote can take its place in everything that is here (`using`).

    check("02.1")                     what is wrong with it, or that it is right
    with using(rms_norm=mine): …      the real model, decoders and figures run on it
    solution("02.1")                  one way to write it, and why

Exercises are declared in course/exercises/NN_slug.py, each with wrong answers that people really give. A learner's answer that does the same as
one of these gets that one's message.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import answers
from .cells import broken, restored, solved, source, stubbed, untouched
from .checking import Busy, Outcome, alike, attempt, told
from .comparing import kind, short
from .config import nearest
from .patience import TooLong

HOME = Path(__file__).resolve().parents[2] / "course" / "exercises"
STATES = {"open": "[ ]", "wrong": "[x]", "done": "[ok]", "busy": "[?]"}
_DECLARED: dict[str, Exercise] = {}


class NotYet(AssertionError):
    """An exercise is not done, and COURSE_STRICT is set."""


@dataclass
class Exercise:
    """One thing to write. `name` is what it is called, `target` what in the package it can stand for ("module:name", or nothing)."""

    id: str
    name: str
    task: str
    difficulty: int  # 1 … 5
    minutes: int
    hints: tuple[str, str]
    explanation: str
    target: str = ""
    needs: str = ""  # import lines of its cell
    skeleton: str = ""  # its cell, where signature and docstring are not the right stub
    trials: list[tuple[str, Callable]] = field(default_factory=list)
    mistakes: list[tuple[str, object]] = field(default_factory=list)
    answer: object = None

    def solution(self, answer):
        """The right answer, where the target's own body is not the one to show. A decorator, or called with a value."""
        self.answer = answer
        return answer

    def trial(self, what: str) -> Callable:
        """Decorates a function of the learner's object that returns what is to be compared; `what` says what is tried."""
        return lambda f: self.trials.append((what, f)) or f

    def mistake(self, message: str) -> Callable:
        """Decorates a wrong answer, or is called with a wrong value."""
        return lambda wrong: self.mistakes.append((message, wrong)) or wrong

    @property
    def standing(self) -> object:
        """What stands in the package now: the original, or what is used in its place."""
        module, name = self.target.split(":")
        return getattr(importlib.import_module(module), name)

    @functools.cached_property
    def original(self) -> object:
        """The package's own, which a check inside `using` compares with."""
        return self.standing

    @property
    def reference(self) -> object:
        return self.original if self.answer is None else self.answer

    @property
    def is_value(self) -> bool:
        return not callable(self.reference)

    def outcomes(self, mine: object) -> Iterator[Outcome]:
        """One for each trial."""
        return (attempt((lambda value: value) if self.is_value else trial, mine) for _, trial in self.trials or [("", None)])


def exercise(id: str, name: str, **about) -> Exercise:
    """Declare one; see Exercise. A later declaration of the same id (a file loaded anew) takes the place of the earlier."""
    _DECLARED[id] = Exercise(id, name, **about)
    return _DECLARED[id]


@functools.cache
def _load(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"course_exercises_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where a class's source is looked for
    spec.loader.exec_module(module)


def exercises(unit: str = "") -> dict[str, Exercise]:
    """All exercises there are, or those of a unit ("02"), by id."""
    there = sorted(HOME.glob("[0-9][0-9]_*.py"))
    files = [path for path in there if not unit or unit in (path.stem[:2], path.stem)]
    if not files:
        units = ", ".join(path.stem[:2] for path in there)
        raise ValueError(f"no exercises for unit {unit!r}; there are some in {units}" if units else f"the course's exercises are not in {HOME}")
    for path in files:
        _load(path)
    return {id: one for id, one in sorted(_DECLARED.items()) if not unit or id.startswith(f"{unit[:2]}.")}


def find(id: str) -> Exercise:
    """The exercise of that id; ValueError if there is none."""
    if not isinstance(id, str) or id not in (known := exercises()):
        raise ValueError(f"no exercise {id!r}{nearest(str(id), known)}")
    return known[id]


# checking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What is to be said of an answer. `state`: open, wrong, done or busy."""

    state: str
    text: str

    def __str__(self) -> str:
        return f"{STATES[self.state]} {self.text}".encode("utf-8", "replace").decode()  # half a character, in an error's message


def examine(one: Exercise, mine: object) -> Verdict:
    """Run all trials and say what came of it. KeyboardInterrupt passes, nothing else is raised."""
    if untouched(one, mine):
        return Verdict("open", f"{one.id} not attempted: write {one.name} in the cell above, run that cell, then this one again")
    if not one.is_value and not callable(mine):
        return Verdict("wrong", f"{one.id} {one.name} is {short(mine)}, but should be {kind(one.reference)}")
    try:
        mine_came, due = [], list(one.outcomes(one.reference))
        for got in one.outcomes(mine):
            mine_came.append(got)
            if isinstance(got.error, TooLong):
                break
    except Busy as busy:
        return Verdict("busy", f"{one.id} inconclusive: machine busy ({busy}); run this cell again")
    names = [what for what, _ in one.trials] or [""]
    faults = [(got, fault) for got, want, what in zip(mine_came, due, names) if (fault := told(got, want, what))]
    printed = f"\n     It printed: {faults[0][0].printed.strip()}" if faults and faults[0][0].printed.strip() else ""
    if not faults:
        return Verdict("done", f"{one.id} {one.name}: right" + (f" (tried: {'; '.join(names)})" if names[0] else ""))
    complete = len(mine_came) == len(due)
    changes = complete and all(map(alike, mine_came, due))  # then all that is wrong is what it changed
    known = complete and next((said for said, wrong in one.mistakes if _does_the_same(one, wrong, mine_came, changes)), None)
    why = _another_kind(one.reference, mine) if faults[0][0].error else ""
    return Verdict("wrong", f"{one.id} {one.name}: {known or why + faults[0][1]}{printed}")


def _does_the_same(one: Exercise, wrong: object, came: list[Outcome], changes: bool) -> bool:
    """In all trials, of which one at least must have come to an end: anything may raise a TypeError."""
    if all(outcome.error for outcome in came):
        return False
    return all(alike(a, b) and (not changes or a.changed == b.changed) for a, b in zip(one.outcomes(wrong), came))


def _another_kind(reference: object, mine: object) -> str:
    """What is written that is not of the reference's kind: a reason why it raises."""
    if inspect.isclass(reference) != inspect.isclass(mine):
        return f"it is {kind(mine)}, but should be {kind(reference)}: "
    if inspect.isgeneratorfunction(reference) and not inspect.isgeneratorfunction(mine):
        return "it should be a generator, a function that hands out with `yield`: "
    return ""


def check(id: str, *mine: object) -> None:
    """Say how far an exercise is: [ ] not attempted, [x] what is wrong, [ok], or [?] the machine was too busy to tell.

    `mine` is the learner's object, by default what has the exercise's name where this is called. The verdict goes to the answers file.
    Nothing is raised, unless COURSE_STRICT is 1: then NotYet for anything but [ok].
    """
    one = find(id)
    candidate = mine[0] if mine else _callers().get(one.name)
    if not mine and (error := broken(one, _callers().get("In", []))):
        why = f"what you wrote last is not Python yet (line {error.lineno} of its cell: {error.msg})"
        verdict = Verdict("wrong", f"{id} {one.name}: {why}, so there is nothing to try")
    elif not mine and one.name not in _callers():
        verdict = Verdict("open", f"{id} not attempted: there is no {one.name} here; tp.stub({id!r}) prints the cell that it should be written in")
    else:
        verdict = examine(one, candidate)
    before = answers.read()["exercises"].get(id, {})
    if verdict.state != "open":
        _keep(one, candidate, verdict, before)
    elif before.get("done"):
        verdict = Verdict("open", f"{verdict.text}. (It was done before: print(tp.mine({id!r})) shows what you wrote.)")
    print(verdict)
    if os.environ.get("COURSE_STRICT", "0") not in ("", "0") and verdict.state != "done":
        raise NotYet(str(verdict))


def _keep(one: Exercise, mine: object, verdict: Verdict, before: dict) -> None:
    done, text = verdict.state == "done", source(mine, one.name)
    if done and before.get("state") == "done" and before.get("source") == text:
        return
    now = {"state": verdict.state, "done": done or before.get("done", False), "tries": before.get("tries", 0) + 1, "said": str(verdict)}
    answers.keep("exercises", one.id, now | {"source": text if done else before.get("source", ""), "latest": text})


def _callers() -> dict:
    """The names where check was called: a notebook's."""
    frame = inspect.currentframe()
    while frame and frame.f_globals is globals():
        frame = frame.f_back
    return frame.f_globals if frame else {}


def stub(id: str) -> None:
    """Print the cell that an exercise begins with."""
    print(stubbed(find(id)))


def mine(id: str) -> str:
    """What you wrote for an exercise, as it was last right; else as it last was."""
    kept = answers.read()["exercises"].get(find(id).id, {})
    return kept.get("source") or kept.get("latest") or f"# nothing is kept for {id}"


def solution(id: str) -> None:
    """Print one way to do an exercise, where in the package it stands, and why it is as it is."""
    one = find(id)
    home = f"\n(In the package: {one.target})" if one.target else ""
    print(f"{solved(one)}\n\n{textwrap.fill(one.explanation, 100)}{home}")


def learner_or_reference(id: str, *mine: object) -> object:
    """What the learner wrote for an exercise, here or in an earlier unit, if it is right; otherwise the reference. Says which."""
    one = find(id)
    kept = answers.read()["exercises"].get(id, {})
    here = mine[0] if mine else _callers().get(one.name)
    if examine(one, here).state == "done":
        print(f"{id} {one.name}: yours")
        return here
    if kept.get("done"):
        earlier = attempt(lambda text: restored(one, text), kept.get("source", "")).value
        if earlier is not None and examine(one, earlier).state == "done":
            print(f"{id} {one.name}: yours, as it was when it was last right")
            return earlier  # otherwise it leaned on something of its notebook: the reference does
        print(f"{id} {one.name}: the reference, for what you wrote in its unit does not run here by itself")
        return one.reference
    print(f"{id} {one.name}: the reference, for yours is {'not done yet' if untouched(one, here) else 'not right yet'}")
    return one.reference
