"""The text of an exercise: the cell that a learner begins with, the same cell done, and what they wrote, to be kept and made anew."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import textwrap

from .comparing import short


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


def stubbed(one) -> str:
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


def solved(one) -> str:
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
    """What the learner wrote: of the cell that `mine` comes from, all that `name` needs; empty if it cannot be told."""
    if mine is None or not callable(mine):
        text = f"{name} = {short(mine)}"
        return text if "…" not in text else ""
    code = _code(mine)
    text = "".join(linecache.getlines(code.co_filename)) if code else ""
    try:
        parts = ast.parse(text).body
    except SyntaxError:
        return ""
    kept, wanted, more = set(), {name}, True
    while more:
        more = {i for i, part in enumerate(parts) if not isinstance(part, ast.Expr) and wanted & _bound(part)} - kept
        kept |= more
        wanted |= {n.id for i in more for n in ast.walk(parts[i]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return "\n\n".join(_segment(text, parts[i]) for i in sorted(kept))


def _code(mine: object):
    """The code of a function, or of the first one in a class, in an object's class, or beneath a decorator; None for what is not Python."""
    if isinstance(mine, functools.partial):
        return _code(mine.func)
    mine = inspect.unwrap(mine)
    inside = [mine] if inspect.isfunction(mine) else vars(mine if inspect.isclass(mine) else type(mine)).values()
    return next((f.__code__ for f in inside if inspect.isfunction(f)), None)


def _bound(part: ast.AST) -> set[str]:
    """The names that a statement gives something to, or something of which it sets."""
    if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {part.name}
    found = {(alias.asname or alias.name).split(".")[0] for n in ast.walk(part) if isinstance(n, (ast.Import, ast.ImportFrom)) for alias in n.names}
    for n in ast.walk(part):
        inner = isinstance(n, (ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store)
        while isinstance(n, (ast.Attribute, ast.Subscript)) and inner:
            n = n.value
        if isinstance(n, ast.Name) and (inner or isinstance(n.ctx, ast.Store)):
            found.add(n.id)
    return found


def _segment(text: str, part: ast.AST) -> str:
    above = [node.lineno for node in getattr(part, "decorator_list", ())]
    return "\n".join([*text.splitlines()[min(above, default=part.lineno) - 1 : part.lineno - 1], ast.get_source_segment(text, part)])


def restored(one, text: str) -> object:
    """What was written earlier, made anew. Anything that goes wrong is the caller's to catch."""
    name, space = f"<what you wrote for {one.id}>", {"__name__": "__main__"}
    exec(one.needs, space)  # they may have imported it in another cell
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), space)
    return space[one.name]


def broken(one, cells: list[str]) -> SyntaxError | None:
    """Why the last of a notebook's cells in which the exercise was written is no Python; None if it is, or if there is none."""
    heads = re.compile(rf"^(def|class) {one.name}\b|^{one.name} *=", re.M)
    text = next((cell for cell in reversed(cells) if heads.search(cell)), "")
    try:
        ast.parse(text)
    except SyntaxError as error:
        return error


def untouched(one, mine: object) -> bool:
    """Is it still the stub?"""
    if mine is None or mine is ...:
        return True
    if not callable(mine) or not (text := source(mine, one.name)):
        return False
    tree = lambda text: {n.name: ast.dump(n) for n in ast.parse(text).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    written = tree(text).get(getattr(mine, "__name__", one.name))
    return written is not None and written == tree(stubbed(one)).get(one.name)
