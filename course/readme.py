"""The measured figures in README.md come from course/results, never from a keyboard: `python course/readme.py`, or `--check`."""

import re
import sys
from pathlib import Path

from tokenpace.bench import read, text

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- bench: from (\S+), .*?-->\n).*?(<!-- end -->)", re.DOTALL)


def filled(readme: str) -> str:
    """The README with every block as its results say."""

    def block(match: re.Match) -> str:
        found = read(ROOT / match[2])
        here = found["machine"]
        versions = ", ".join(f"{name} {here['versions'][name]}" for name in ("torch", "transformers"))
        where = f"{here['name']}, {here['cores']} cores, {here['threads']['torch']} threads; {versions}"
        return f"{match[1]}```\n{text(found)}\n{where}\n```\n{match[3]}"

    return BLOCK.sub(block, readme)


def main() -> int:
    path = ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        if filled(old) != old:
            print("README.md does not say what course/results say: python course/readme.py")
        return int(filled(old) != old)
    path.write_text(filled(old), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
