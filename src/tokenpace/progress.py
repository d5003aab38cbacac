"""How far a learner has come: what the answers file says, beside all that there is to do. Plain ASCII, for any terminal."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from . import answers
from .exercises import STATES, exercises, find


@dataclass(frozen=True)
class Line:
    """One exercise, and how it stands: open, wrong, done or busy."""

    id: str
    name: str
    state: str
    tries: int
    difficulty: int
    minutes: int


@dataclass(frozen=True)
class Progress:
    lines: tuple[Line, ...]
    predictions: dict[str, float]

    def to_dict(self) -> dict:
        return {"exercises": [asdict(line) for line in self.lines], "predictions": self.predictions}

    def __str__(self) -> str:
        width, text = max(len(line.name) for line in self.lines), []
        for unit in sorted({line.id[:2] for line in self.lines}):
            mine = [line for line in self.lines if line.id.startswith(f"{unit}.")]
            text.append(f"unit {unit}: {sum(line.state == 'done' for line in mine)} of {len(mine)} done")
            for line in mine:
                tried = f", {line.tries} tr{'y' if line.tries == 1 else 'ies'}" if line.tries else ""
                about = f"difficulty {line.difficulty} of 5, about {line.minutes} minutes"
                text.append(f"  {STATES[line.state]:4} {line.id}  {line.name:{width}}  {about}{tried}")
            kept = ", ".join(f"{name[3:]} {value:g}" for name, value in self.predictions.items() if name.startswith(f"{unit}."))
            text += [f"  predictions: {kept}"] if kept else []
        return "\n".join(text)


def progress(unit: str = "") -> Progress:
    """Of a unit ("02"), or of all. ValueError if there is no such unit."""
    kept, lines = answers.read(), []
    for id, one in exercises(unit).items():
        so_far = kept["exercises"].get(id, {})
        state = "done" if so_far.get("done") else so_far.get("state", "open")
        lines.append(Line(id, one.name, state, so_far.get("tries", 0), one.difficulty, one.minutes))
    predictions = {name: value["value"] for name, value in kept["predictions"].items() if not unit or name.startswith(f"{unit[:2]}.")}
    return Progress(tuple(lines), predictions)


def reset(what: str) -> dict[str, str]:
    """Forget an exercise ("02.1") or a unit's ("02"): id -> what was written. ValueError if there is none of that name."""
    ids, kept = [find(what).id] if "." in what else list(exercises(what)), answers.read()["exercises"]
    forgotten = {id: kept[id].get("source") or kept[id].get("latest", "") for id in ids if id in kept}
    return {id: text for id, text in forgotten.items() if answers.keep("exercises", id, None)}
