"""Run a unit as `COURSE_MODE=quick` does and keep what it measured: `python course/record.py 01 [--as LABEL]`.

Without a label the runs become the ones a dry lesson replays; with one they are another machine's, drawn beside the learner's own.
"""

import argparse
import os
import tempfile
from pathlib import Path

from build import COURSE, EVERY, expanded, parse

from tokenpace.lesson import record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("unit", help="two digits, as 01")
    parser.add_argument("--as", dest="label", default="", help="a short name of this machine, as h200")
    parser.add_argument("--picture", type=Path, help="write the unit's figure as a PNG, too")
    wanted = parser.parse_args()
    os.environ |= {"COURSE_MODE": "quick", "TOKENPACE_DATA": tempfile.mkdtemp()}  # nobody's answers
    (source,) = (COURSE / "units").glob(f"{wanted.unit}_*.py")
    space: dict = {}
    for cell in expanded(parse(source.read_text(encoding="utf-8"), source.name), solved=EVERY):
        if cell["kind"] == "code":
            exec(compile(cell["source"], source.name, "exec", dont_inherit=True), space)
    for path in record(space["unit"], space["shown"].roof, COURSE / "results", wanted.label):
        print(f"wrote {path.relative_to(COURSE.parent)}")
    if wanted.picture:
        space["shown"].save(wanted.picture)
        print(f"wrote {wanted.picture}")


if __name__ == "__main__":
    main()
