"""An exercise is a part of this package that somebody else writes again: the stub is its signature and docstring, the solution is its body, and
what the learner wrote can take its place in everything that is here (`using`).

    check("02.1")                     what is wrong with it, or that it is right
    with using(rms_norm=mine): …      the real model, decoders and figures run on it
    solution("02.1")                  one way to write it, and why

Exercises are declared in course/exercises/NN_slug.py, each with wrong answers that people really give. A learner's answer that does the same as
one of these gets that one's message.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import linecache
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import answers
from .checking import Busy, Outcome, TooLong, alike, attempt, told, within
from .config import nearest

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
    def original(self) -> object:
        """What stands in the package."""
        module, name = self.target.split(":")
        return getattr(importlib.import_module(module), name)

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
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def exercises(unit: str = "") -> dict[str, Exercise]:
    """All exercises there are, or those of a unit ("02"), by id."""
    files = sorted(HOME.glob(f"{unit[:2]}*.py"))
    if not files:
        units = ", ".join(path.stem[:2] for path in sorted(HOME.glob("*.py")))
        raise ValueError(f"no exercises for unit {unit!r}; there are some in {units}" if units else f"the course's exercises are not in {HOME}")
    for path in files:
        _load(path)
    return {id: one for id, one in sorted(_DECLARED.items()) if not unit or id.startswith(f"{unit[:2]}.")}


def find(id: str) -> Exercise:
    """The exercise of that id; ValueError if there is none."""
    if not isinstance(id, str) or id not in (known := exercises()):
        raise ValueError(f"no exercise {id!r}{nearest(str(id), known)}")
    return known[id]


# what is written -------------------------------------------------------------------------------------------------


def _text(thing: object) -> tuple[list[str], ast.AST]:
    lines = textwrap.dedent(inspect.getsource(thing)).splitlines()
    return lines, ast.parse("\n".join(lines)).body[0]


def _bare(node: ast.AST) -> str:
    """The header of a function or class without annotations and decorators."""
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}:"
    for argument in [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs, *filter(None, (node.args.vararg, node.args.kwarg))]:
        argument.annotation = None
    return f"def {node.name}({ast.unparse(node.args)}):"


def _cell(needs: str, body: list[str]) -> str:
    return "\n".join([needs, "", "", *body] if needs else body)


def stubbed(one: Exercise) -> str:
    """The cell that the learner begins with."""
    if one.skeleton:
        return _cell(one.needs, one.skeleton.strip("\n").splitlines())
    if one.is_value:
        return f"{one.name} = None  # your answer in place of None"
    lines, node = _text(one.reference)
    return _cell(one.needs, _stub(lines, node))


def _stub(lines: list[str], node: ast.AST) -> list[str]:
    indent = " " * (node.col_offset + 4)
    written = [" " * node.col_offset + _bare(node)]
    has_docs = ast.get_docstring(node) is not None
    if has_docs:
        written += lines[node.body[0].lineno - 1 : node.body[0].end_lineno]
    if not isinstance(node, ast.ClassDef):
        return [*written, indent + "..."]
    for part in node.body[has_docs:]:
        written += ["", *_stub(lines, part)] if isinstance(part, ast.FunctionDef) else lines[part.lineno - 1 : part.end_lineno]
    return written


def solved(one: Exercise) -> str:
    """The same cell, done."""
    if one.is_value:
        return f"{one.name} = {one.reference!r}"
    lines, node = _text(one.reference)
    done = list(lines[node.lineno - 1 :])
    shift, headed = node.lineno - 1, [n for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    for f in sorted(headed, key=lambda n: -n.lineno):
        first, body = f.lineno - 1 - shift, f.body[0].lineno - 1 - shift
        if body > first:  # a body on the header's own line stays as it is
            done[first:body] = [" " * f.col_offset + _bare(f)]
    return _cell(one.needs, done)


def source(mine: object, name: str) -> str:
    """What the learner wrote: the imports and definitions of the cell that `mine` comes from; empty if it cannot be told."""
    if mine is None or not callable(mine):
        return f"{name} = {mine!r}"
    code = next((f.__code__ for f in ([mine] if inspect.isfunction(mine) else vars(mine).values()) if inspect.isfunction(f)), None)
    text = "".join(linecache.getlines(code.co_filename)) if code else ""
    try:
        parts = ast.parse(text).body
    except SyntaxError:
        return ""
    kept = [p for p in parts if isinstance(p, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign))]
    return "\n\n".join(ast.get_source_segment(text, p) for p in kept)


def restored(one: Exercise, text: str) -> object:
    """What was written earlier, made anew. Anything that goes wrong is the caller's to catch."""
    name, space = f"<what you wrote for {one.id}>", {}
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    within(5.0, lambda: exec(compile(text, name, "exec"), space))
    return space[one.name]


def untouched(one: Exercise, mine: object) -> bool:
    """Is it still the stub?"""
    if mine is None or mine is ...:
        return True
    if not callable(mine) or not (text := source(mine, one.name)):
        return False
    tree = lambda text: {n.name: ast.dump(n) for n in ast.parse(text).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    written = tree(text).get(getattr(mine, "__name__", one.name))
    return written is not None and written == tree(stubbed(one)).get(one.name)


# checking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What is to be said of an answer. `state`: open, wrong, done or busy."""

    state: str
    text: str

    def __str__(self) -> str:
        return f"{STATES[self.state]} {self.text}"


def examine(one: Exercise, mine: object) -> Verdict:
    """Run all trials and say what came of it. KeyboardInterrupt passes, nothing else is raised."""
    if untouched(one, mine):
        return Verdict("open", f"{one.id} not attempted: write {one.name} in the cell above, run that cell, then this one again")
    if not one.is_value and not callable(mine):
        return Verdict("wrong", f"{one.id} {one.name} is {mine!r:.60}, but should be a {'class' if inspect.isclass(one.reference) else 'function'}")
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
    return Verdict("wrong", f"{one.id} {one.name}: {known or faults[0][1]}{printed}")


def _does_the_same(one: Exercise, wrong: object, came: list[Outcome], changes: bool) -> bool:
    return all(alike(a, b) and (not changes or a.changed == b.changed) for a, b in zip(one.outcomes(wrong), came))


def check(id: str, *mine: object) -> None:
    """Say how far an exercise is: [ ] not attempted, [x] what is wrong, [ok], or [?] the machine was too busy to tell.

    `mine` is the learner's object, by default what has the exercise's name where this is called. The verdict goes to the answers file.
    Nothing is raised, unless COURSE_STRICT is 1: then NotYet for anything but [ok].
    """
    one = find(id)
    candidate = mine[0] if mine else _callers().get(one.name)
    if not mine and one.name not in _callers():
        verdict = Verdict("open", f"{id} not attempted: there is no {one.name} here; tp.stub({id!r}) prints the cell that it should be written in")
    else:
        verdict = examine(one, candidate)
    before = answers.read()["exercises"].get(id, {})
    if verdict.state != "open":
        _keep(one, candidate, verdict, before)
    elif before.get("done"):
        verdict = Verdict("open", f"{verdict.text}. (It was done before: print(tp.mine({id!r})) shows what you wrote.)")
    print(verdict)
    if os.environ.get("COURSE_STRICT") == "1" and verdict.state != "done":
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


# using -----------------------------------------------------------------------------------------------------------


def learner_or_reference(id: str, *mine: object) -> object:
    """What the learner wrote for an exercise, here or in an earlier unit, if it is right; otherwise the reference. Says which."""
    one = find(id)
    kept = answers.read()["exercises"].get(id, {})
    here = mine[0] if mine else _callers().get(one.name)
    if examine(one, here).state == "done":
        print(f"{id} {one.name}: yours")
        return here
    if kept.get("done") and kept.get("source"):
        try:
            earlier = restored(one, kept["source"])
            if examine(one, earlier).state == "done":
                print(f"{id} {one.name}: yours, as it was when it was last right")
                return earlier
        except (Exception, TooLong):
            pass  # it leaned on something of its notebook: the reference does
        print(f"{id} {one.name}: the reference, for what you wrote in its unit does not run here by itself")
        return one.reference
    print(f"{id} {one.name}: the reference, for yours is {'not done yet' if untouched(one, here) else 'not right yet'}")
    return one.reference


@dataclass
class Used:
    """How often each part that was put in was called."""

    calls: Counter = field(default_factory=Counter)

    def __str__(self) -> str:
        told = ", ".join(f"{name} {n:,} time{'s' * (n != 1)}" for name, n in self.calls.items())
        idle = [name for name, n in self.calls.items() if not n]
        return f"called: {told}" + (f" (nothing here needs {', '.join(idle)}: do the tiled kernels run in its place?)" if idle else "")

    __repr__ = __str__


@contextmanager
def using(**mine) -> Iterator[Used]:
    """While this is open, the package runs on these in place of its own: `with using(rms_norm=mine) as used: …`. `used.calls` counts.

    Names are those of exercises' targets; ValueError for another. Every module that holds the original gets the replacement, and the original back
    in the end, whatever happened. The tiled kernels are compiled and call no parts: use a plain model. This is the package's one global state.
    """
    targets = {one.target.split(":")[1]: one for one in exercises().values() if one.target}
    for name, part in mine.items():
        if name not in targets:
            raise ValueError(f"nothing that can be replaced is called {name!r}{nearest(name, targets)}")
        if not callable(part):
            raise TypeError(f"{name} is {part!r:.60}, which cannot be called")
    used = Used(Counter(dict.fromkeys(mine, 0)))
    with ExitStack() as back:
        for name, part in mine.items():
            original, counted = targets[name].original, _counted(part, name, used.calls)
            for module in [m for at, m in list(sys.modules.items()) if at.split(".")[0] == "tokenpace" and m]:
                for attribute, value in list(vars(module).items()):
                    if value is original:
                        back.callback(setattr, module, attribute, original)
                        setattr(module, attribute, counted)
        yield used


def _counted(part: Callable, name: str, calls: Counter) -> Callable:
    if inspect.isclass(part):
        methods = {n: _counted(f, name, calls) for n, f in vars(part).items() if inspect.isfunction(f)}
        return type(part.__name__, (part,), methods)

    @functools.wraps(part)
    def counted(*args, **named):
        calls[name] += 1
        return part(*args, **named)

    return counted
