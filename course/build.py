"""Percent sources in, notebooks out: `python course/build.py` writes notebooks/, `--check` says whether they are what it would write.

One unit is one file, course/units/NN_slug.py, so that it can be read, searched, formatted and reviewed as what it is, a text with
some Python in it. Four comments make it a notebook:

    # %% [markdown]                       a text cell; its lines follow as comments
    # %% tags=["nbval-check-output"]      a code cell, with metadata as key=JSON
    #> 42                                 at the end of a code cell: what it prints, stored as its output
    # %% exercise="02.1"                  an exercise: becomes its text, the cell to write in, and the cell that checks it

Everything derived is a function of the source alone: a cell's id is a hash of what the cell says, so building twice gives the same
bytes and a changed sentence changes one cell. `problems` holds the rules that a notebook must keep.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sys
from collections.abc import Container
from pathlib import Path

COURSE = Path(__file__).resolve().parent
LINES = 12  # of code in a cell: more is a function's work
MARKER = re.compile(r"# %%[ \t]*(?P<kind>\[markdown\])?[ \t]*(?P<about>.*)")
UNITED = re.compile(r"(?<![\w.^])\d[\d.,]*\s?(?:[kKMGT]?i?B(?:/s)?|[kMGT]?FLOP(?:/s)?|[mµn]s|tokens?/s|tok/s|GHz|J|W|×|%)(?![\w])")
Cell = dict


class Every:
    """Contains everything: all exercises are to be solved."""

    def __contains__(self, id: str) -> bool:
        return True


EVERY = Every()


def parse(text: str, name: str = "source") -> list[Cell]:
    """A percent source's cells: kind, metadata, source, and the output that the source says a code cell has.

    >>> [cell["source"] for cell in parse("# %% [markdown]\\n# # Title\\n#\\n# Text.\\n\\n# %%\\nprint(1)\\n#> 1\\n")]
    ['# Title\\n\\nText.', 'print(1)']
    """
    cells: list[Cell] = []
    for number, line in enumerate(text.splitlines(), 1):
        if mark := MARKER.fullmatch(line.rstrip()):
            cells.append({"kind": "markdown" if mark["kind"] else "code", "metadata": _metadata(mark["about"], f"{name}:{number}"), "lines": []})
        elif cells:
            cells[-1]["lines"].append(line)
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{name}:{number}: code before the first cell; start it with a line '# %%'")
    if not cells:
        raise ValueError(f"{name}: no cell in it; a cell starts with a line '# %%' or '# %% [markdown]'")
    return [_finish(cell, name) for cell in cells]


def _metadata(about: str, where: str) -> dict:
    """`tags=["a", "b"] editable=false` -> {"tags": ["a", "b"], "editable": False}"""
    found, decoder = {}, json.JSONDecoder()
    while about := about.strip():
        key = re.match(r"(\w+)=", about)
        try:
            value, end = decoder.raw_decode(about, key.end())
        except (AttributeError, ValueError):
            raise ValueError(f"{where}: cannot read {about!r}; after '# %%' come [markdown] and key=JSON, as in tags=[\"exercise\"]") from None
        found[key[1]], about = value, about[end:]
    return found


def _finish(cell: Cell, name: str) -> Cell:
    lines, output = cell.pop("lines"), []
    if cell["kind"] == "markdown":
        if bad := [line for line in lines if line.strip() and not line.startswith("#")]:
            raise ValueError(f"{name}: the text cell has a line that is not a comment: {bad[0]!r}")
        lines = [line[2:] if line.startswith("# ") else line[1:] for line in lines]
    else:
        while lines and (lines[-1].startswith("#>") or not lines[-1].strip()):
            last = lines.pop()
            if last.startswith("#>"):
                output.insert(0, last[3:] if last.startswith("#> ") else last[2:])
    return cell | {"source": "\n".join(lines).strip("\n"), "output": output}


def expanded(cells: list[Cell], solved: Container[str] = ()) -> list[Cell]:
    """With each exercise spelled out: what is to be done, the stub (or, if it is in `solved`, the solution), and the check, with its output."""
    found = []
    for cell in cells:
        if "exercise" not in cell["metadata"]:
            found.append(cell)
            continue
        if cell["source"] or cell["output"]:
            raise ValueError(f"the cell of exercise {cell['metadata']['exercise']} must be empty: what stands in it is made from course/exercises")
        id = cell["metadata"]["exercise"]
        found += _exercise(id, id in solved)
    return found


def _exercise(id: str, solved: bool) -> list[Cell]:
    from tokenpace import cells, exercises

    one = exercises.find(id)
    hints = [(f"Hint {i}", hint) for i, hint in enumerate(one.hints, 1)]
    hints.append(("Stuck?", f"`tp.solution({id!r})` in a new cell prints one way to do it, and why."))
    folded = "\n".join(f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" for title, text in hints)
    text = f"### Exercise {id} · `{one.name}`\n\n{one.task} *(Difficulty {one.difficulty} of 5, about {one.minutes} minutes.)*\n\n{folded}"
    verdict = str(exercises.examine(one, one.reference if solved else None))
    cell = lambda kind, source, *tags, output=(): {"kind": kind, "metadata": {"tags": [*tags]}, "source": source, "output": [*output]}
    return [
        cell("markdown", text, "exercise"),
        cell("code", cells.solved(one) if solved else cells.stubbed(one), "exercise"),
        cell("code", f'tp.check("{id}")', "nbval-check-output", output=verdict.splitlines()),
    ]


def notebook(cells: list[Cell]) -> dict:
    """The notebook (nbformat 4.5) of these cells, not run: outputs are those that the source itself states."""
    built, taken, count = [], set(), 0
    for cell in cells:
        made = {"cell_type": cell["kind"], "id": _id(cell, taken), "metadata": cell["metadata"], "source": cell["source"].splitlines(keepends=True)}
        if cell["kind"] == "code":
            count += 1
            stored = [{"name": "stdout", "output_type": "stream", "text": [line + "\n" for line in cell["output"]]}] if cell["output"] else []
            made |= {"execution_count": count if stored else None, "outputs": stored}
        built.append(made)
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return {"cells": built, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}


def _id(cell: Cell, taken: set[str]) -> str:
    """A hash of what the cell says; a second cell that says the same gets the next hash in line."""
    text = cell["kind"] + "\0" + cell["source"]
    while (name := hashlib.sha256(text.encode()).hexdigest()[:12]) in taken:
        text += "\0"
    taken.add(name)
    return name


def dump(book: dict) -> bytes:
    """As nbformat writes it, so that saving in JupyterLab changes as little as can be."""
    return (json.dumps(book, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()


def problems(book: dict) -> list[str]:
    """The rules of the course that this notebook breaks, each with the cell that breaks it."""
    found, stubs = [], set()
    if book.get("metadata", {}).get("kernelspec", {}).get("name") != "python3":
        found.append("the kernelspec is not python3")
    if book.get("metadata", {}).get("widgets"):
        found.append("widget state is saved in it")
    for cell in book["cells"]:
        where, source = f"cell {cell['id']}", "".join(cell["source"])
        given = "exercise" in cell["metadata"].get("tags", [])  # the numbers of an exercise are not measured
        broken = _code(cell, source, stubs) if cell["cell_type"] == "code" else [] if given else _prose(source)
        found += [f"{where}: {what}" for what in broken]
    return found


def _prose(source: str) -> list[str]:
    plain = re.sub(r"`[^`]*`|\$[^$]*\$|<!--.*?-->", "", source, flags=re.DOTALL)
    return [f"a figure typed into prose, {hit[0]!r}: let a cell compute it" for hit in UNITED.finditer(plain)]


def _code(cell: Cell, source: str, stubs: set[str]) -> list[str]:
    found, tags = [], cell["metadata"].get("tags", [])
    if any(re.match(r"\s*[%!?]|.*\?\s*$", line) for line in source.splitlines() if not line.lstrip().startswith("#")) or "get_ipython" in source:
        return ["a magic or a shell line; nbval skips the rest of such a cell"]
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return [f"not Python: {error.msg}"]
    defined = [node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))]
    if defined and "exercise" not in tags:
        found.append(f"defines {', '.join(defined)}; a notebook narrates and calls")
    found += [f"stubs {name} a second time" for name in defined if name in stubs]
    stubs.update(defined)
    if (long := sum(bool(line.strip()) for line in source.splitlines())) > LINES and "exercise" not in tags:
        found.append(f"{long} lines of code, more than {LINES}")
    if any("application/vnd.jupyter.widget-view+json" in output.get("data", {}) for output in cell["outputs"]):
        found.append("a widget is saved in its outputs")
    if "nbval-check-output" in tags and not (cell["outputs"] and cell["execution_count"]):
        found.append("its output is to be compared, but it holds no output and count: nbval would compare nothing")
    if "raises-exception" in tags and "nbval-check-output" not in tags:
        found.append("raises-exception permits an exception and asserts none: tag nbval-check-output too")
    return found


def build(source: Path, solved: Container[str] = ()) -> bytes:
    """The bytes of a unit's notebook. A rule that it breaks is a ValueError."""
    book = notebook(expanded(parse(source.read_text(encoding="utf-8"), source.name), solved))
    if broken := problems(book):
        raise ValueError(f"{source.name}:\n  " + "\n  ".join(broken))
    return dump(book)


def main(arguments: list[str] | None = None, course: Path = COURSE) -> int:
    parser = argparse.ArgumentParser(description="Build notebooks/ from course/units/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a notebook is not what its source builds")
    parser.add_argument("--solved", type=Path, metavar="FOLDER", help="write copies with all exercises done there, and nothing else")
    wishes = parser.parse_args(arguments)
    check, notebooks = wishes.check, wishes.solved or course.parent / "notebooks"
    try:
        sources = sorted((course / "units").glob("[0-9][0-9]_*.py"))
        wanted = {notebooks / f"{source.stem}.ipynb": build(source, EVERY if wishes.solved else ()) for source in sources}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    stale = [] if wishes.solved else [path for path in sorted(notebooks.glob("*.ipynb")) if path not in wanted]
    changed = [path for path, data in wanted.items() if not path.exists() or path.read_bytes() != data]
    if check:
        for path in changed + stale:
            print(f"notebooks/{path.name} is not what course/units/ builds; run: python course/build.py", file=sys.stderr)
        return 1 if changed or stale else 0
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path])
        print(f"wrote {path.parent.name}/{path.name}")
    for path in stale:
        path.unlink()
        print(f"removed notebooks/{path.name}, which has no source")
    return 0


if __name__ == "__main__":
    sys.exit(main())
