"""What a unit's notebook stands on: a model, this machine's roof, and how long the lesson may take.

COURSE_MODE says which of three lessons it is. *full* measures here and takes its time, *quick* measures here in under a minute
(Binder, a classroom, a test), *dry* measures nothing: it replays the runs in course/results, and the figures say where they are from.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path

from . import answers
from .comparing import short
from .config import ModelConfig, nearest, preset
from .measure import intervention, samples
from .measure.clock import Stamped
from .measure.cost import Cost, Device, step_cost
from .measure.counters import Counter, counter
from .measure.devices import device as sheet
from .measure.energy import idle, metered
from .measure.intervention import Taken
from .measure.ledger import Entry, Ledger
from .measure.roof import Sample
from .measure.trace import Trace, read, write

MODES = ("full", "quick", "dry")
COURSE = Path(__file__).resolve().parents[2] / "course"
RESULTS = COURSE / "results"
PER_MINUTE = 150  # words of a text with formulas and code that are read with care
ELSEWHERE = ("NVIDIA H100 SXM",)  # asked about where it is not


def mode() -> str:
    """COURSE_MODE, or full.

    Raises ValueError for a word that is none of the three.
    """
    word = os.environ.get("COURSE_MODE") or "full"
    if word not in MODES:
        raise ValueError(f"COURSE_MODE is {word!r}{nearest(word, MODES)}")
    return word


@dataclass
class Lesson:
    """A unit in progress. `lm` is what it runs, None in a dry lesson; `device` is the machine that figures are judged by."""

    unit: str
    mode: str
    lm: object
    config: ModelConfig
    number: float  # bytes of a weight
    machine: dict
    device: Device
    decode: Callable[[list[int]], str]
    recordings: dict[str, Trace] = field(default_factory=dict)
    runs: dict[str, list[Stamped]] = field(default_factory=dict)  # what was measured, for `record`
    sampled: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    theft: Taken | None = None
    model: str = "smollm2-135m"
    opened: float = field(default_factory=time.monotonic)

    def size(self, quick: int, full: int) -> int:
        """How much to measure: what fits the mode."""
        return full if self.mode == "full" else quick

    def run(self, name: str, prompt, **settings) -> Iterator[Stamped]:
        """`tp.prepare(lm, prompt, **settings).timed()`: every pass of the run, stamped with its seconds, and metered where joules can be read.
        A dry lesson replays its recording.
        """
        if self.mode == "dry":
            return iter(self._recorded(name))
        from .generate import prepare

        return self._keep(name, metered(prepare(self.lm, prompt, **settings).timed(), self.counter))

    def sample(self, name: str, lanes: Callable[[], Mapping[str, Iterable[Sample]]]) -> Mapping[str, Iterable[Sample]]:
        """Lanes of Samples as they are measured. A dry lesson replays its recording and calls nothing."""
        if self.mode == "dry":
            return samples.read(RESULTS / f"{self.unit}_{name}.samples.jsonl").lanes
        kept = self.sampled[name] = {}
        return {lane: _through(points, kept.setdefault(lane, [])) for lane, points in lanes().items()}

    def length(self, prompt: str) -> int:
        """Tokens of a prompt; in a dry lesson, of the prompt that was recorded."""
        if self.mode != "dry":
            return len(self.lm.tokenizer.encode(prompt))
        return next(row.width for trace in self.recordings.values() for step, _ in trace for row in step.rows)

    def recorded(self, *names: str) -> dict[str, dict[str, Trace]]:
        """The same runs on other machines, by the machine's name: course/results/UNIT_name.MACHINE.jsonl, where all of them are there."""
        labels = {path.name.split(".")[1] for path in RESULTS.glob(f"{self.unit}_{names[0]}.*.jsonl")}
        found = {label: {name: RESULTS / f"{self.unit}_{name}.{label}.jsonl" for name in names} for label in sorted(labels)}
        traces = [{name: read(path) for name, path in files.items()} for files in found.values() if all(path.exists() for path in files.values())]
        return {lanes[names[0]].machine["name"]: lanes for lanes in traces}

    @cached_property
    def counter(self) -> Counter:
        """What counts joules here, or why nothing does. In a dry lesson: what it was where the recording was made."""
        if self.mode != "dry":
            return counter(str(self.lm.device))
        return Counter(**self._metering().get("counter", {"name": "nothing", "step": 0.0, "why": "nobody looked for a counter"}))

    @cached_property
    def idle(self) -> float | None:
        """Watts of this machine at rest, measured for a second when first asked for; None where they can't be read."""
        return self._metering().get("idle") if self.mode == "dry" else idle(self.counter)

    def _metering(self) -> dict:
        return next(iter(self.recordings.values())).about.get("metering", {})

    def _keep(self, name: str, stamped: Iterable[Stamped]) -> Iterator[Stamped]:
        self.runs[name] = []
        return _through(stamped, self.runs[name])

    def _recorded(self, name: str) -> Trace:
        if name not in self.recordings:
            raise FileNotFoundError(
                f"unit {self.unit} has no recording {name!r}{nearest(name, self.recordings)}; "
                f"leave COURSE_MODE=dry, or record one: python course/record.py {self.unit}"
            )
        return self.recordings[name]

    @cached_property
    def plain(self):
        """The same model on PyTorch's own kernels, so on Python code that can be replaced (`using`). In a dry lesson: a small one that was never
        trained and writes nonsense.
        """
        from .load import load

        return load("shape:15m", device="cpu", dtype="float32") if self.mode == "dry" else load(self.model)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. The small model of a dry lesson has no vocabulary, so there they are the text's bytes."""
        return list(text.encode()) if self.mode == "dry" else self.lm.tokenizer.encode(text)

    # the learner's own: kept in their answers --------------------------------------------------------------------------

    def predict(self, name: str, value: object) -> float | None:
        """Keep what the learner expects, before it is measured. None: what was kept earlier, or no prediction. What is no number is none."""
        kept = answers.read()["predictions"].get(key := f"{self.unit}.{name}")
        if value is None or value is ...:
            day = kept.get("when", "an earlier day").split("T")[0] if kept else ""
            print(f"your prediction of {day}: {kept['value']:g}" if kept else "no prediction yet: put a number in place of None")
            return kept["value"] if kept else None
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except Exception:  # a text, a tensor of several, 10**400
            number = math.nan
        if not math.isfinite(number):
            print(f"{short(value)} is no number, so it counts as no prediction: a number like 3 or 0.5 is wanted")
            return None
        answers.keep("predictions", key, {"value": number, "when": datetime.now().isoformat(timespec="minutes")})
        told = f"changed from {kept['value']:g} to" if kept and kept["value"] != number else "kept before anything is measured:"
        print(f"your prediction, {told} {number:g}")
        return number

    def ledger(self, *rows: Entry) -> Ledger:
        """The ledger of this machine so far, with `rows` added. In a dry lesson: these alone, for they are not from here."""
        earlier = {} if self.mode == "dry" else answers.read()["ledger"]
        found = Ledger()
        for value in earlier.values():
            if value["machine"] == self.machine["name"]:
                row = value["row"]
                with suppress(TypeError, KeyError):  # a row that another version of this package wrote
                    found.add(Entry(**row | {"mbu": row["mbu"] and tuple(row["mbu"])}))
        for row in rows:
            found.add(row)
            if self.mode != "dry":
                answers.keep("ledger", row.name, {"row": asdict(row), "machine": self.machine["name"], "unit": self.unit})
        return found

    def claim(self, name: str, *measured) -> None:
        """Judge a claim of the course by what was measured, print the verdict with its figures, and keep it for `tp.claims()`."""
        from .claims import judge

        print(judge(name, *measured, machine=self.machine["name"], dtype=self.dtype, recorded=self.mode == "dry"))

    def end(self) -> None:
        """Say how long the unit took, and what of it is done."""
        from .exercises import exercises

        ids, kept = list(exercises(self.unit)), answers.read()["exercises"]
        done = sum(kept.get(id, {}).get("done", False) for id in ids)
        minutes = round((time.monotonic() - self.opened) / 60)
        print(f"Unit {self.unit} was open for {minutes} minute{'s' * (minutes != 1)}; {estimate(self.unit)} were expected.", end=" ")
        print(f"{done} of {len(ids)} exercises are done.")

    @property
    def price(self) -> Callable[..., Cost]:
        """The cost of a Step of this model."""
        return partial(step_cost, self.config, number=self.number)

    @property
    def roof(self) -> Callable[[], tuple[float, ...]]:
        """What probes the read bandwidth before and after a run. In a dry lesson: what was probed then, first before, then after."""
        if self.mode == "dry":
            kept = next(iter(self.recordings.values())).roof
            return partial(next, cycle([kept["before"], kept["after"]]))
        from .measure.probe import roof_now

        return partial(roof_now, device=str(self.lm.device))

    @property
    def cache(self) -> int:
        """Bytes of the last-level cache."""
        return self.machine["last_level_cache"]["bytes"]

    @property
    def dtype(self) -> str:
        """What a weight is stored as."""
        return {2: "bfloat16", 4: "float32"}.get(self.number, f"{self.number} bytes a weight")

    @property
    def elsewhere(self) -> tuple[Device, ...]:
        """Devices that are not here, for a lane that is predicted and says so."""
        return tuple(sheet(name).device("bfloat16" if self.number == 2 else "float32") for name in ELSEWHERE)

    @property
    def where(self) -> str:
        """What stands under every figure."""
        here = self.machine
        threads = max(v for v in here["threads"].values() if v)
        place = f"{here['name']}, {threads} thread{'s' * (threads > 1)}" if here["device"] == "cpu" else here["name"]
        return f"{'recorded on ' if self.mode == 'dry' else ''}{place}, {self.dtype}, {self.config.n_params / 1e6:.0f}M parameters"

    def __repr__(self) -> str:
        does = {"full": "measures here", "quick": "measures here, briefly", "dry": "replays what was recorded"}[self.mode]
        rates = f"reads {self.device.bandwidth / 1e9:.0f} GB/s, multiplies {self.device.flops / 1e9:,.0f} GFLOP/s"
        return f"Unit {self.unit}, {self.mode}: {does}; {estimate(self.unit)} to read and do. {self.where}. Roof: {rates}."


def _through(points: Iterable, kept: list) -> Iterator:
    """The points as they come, each kept."""
    for point in points:
        kept.append(point)
        yield point


def estimate(unit: str) -> str:
    """Minutes that a unit takes: its words, read with care, and what its exercises say of themselves."""
    from .exercises import exercises

    try:
        (source,) = (COURSE / "units").glob(f"{unit}_*.py")
        words = sum(len(re.findall(r"\w+", line)) for line in source.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
        tasks = [one.minutes for one in exercises(unit).values()]
    except ValueError:  # a unit without a text or exercises
        return "some minutes"
    return f"about {5 * math.ceil((words / PER_MINUTE + sum(tasks)) / 5)} minutes"


def start(unit: str, model: str = "smollm2-135m", seconds: float = 2.0) -> Lesson:
    """Open a unit: load its model, with the fast kernels where they run, and probe this machine for `seconds`. In dry mode: open its recordings."""
    if mode() == "dry":
        return _dry(unit, model)
    from .generate import generate
    from .load import fast, load
    from .measure.probe import probe

    lm = fast(load(model))
    generate(lm, [1] * 16, max_new_tokens=4)  # whatever is compiled or initialised at its first use, is now
    roof = probe(seconds, str(lm.device))
    return Lesson(unit, mode(), lm, lm.config, lm.number, roof.machine, roof.device(lm.dtype), lm.tokenizer.decode, model=model)


def _dry(unit: str, model: str) -> Lesson:
    traces = {path.stem.split("_", 1)[1]: read(path) for path in sorted(RESULTS.glob(f"{unit}_*.jsonl")) if "." not in path.stem}
    if not traces:
        raise FileNotFoundError(
            f"COURSE_MODE is dry, but course/results holds no recording of unit {unit}; record one: python course/record.py {unit}"
        )
    first = next(iter(traces.values()))
    pieces = {int(id): piece for trace in traces.values() for id, piece in trace.about["pieces"].items()}
    text = lambda ids: "".join(pieces[i] for i in ids)
    taken = RESULTS / f"{unit}_theft.taken.jsonl"
    theft = intervention.read(taken) if taken.exists() else None
    device = Device(**first.about["device"])
    return Lesson(unit, "dry", None, preset(model), first.about["number"], first.machine, device, text, traces, theft=theft)


def metering(lesson: Lesson) -> dict:
    """What counted the joules of its runs, and the machine at rest, for their files; nothing if nobody asked."""
    if "idle" not in vars(lesson):  # a property that was never looked at
        return {}
    known = lesson.counter
    return {"metering": {"counter": {"name": known.name, "step": known.step, "why": known.why}, "idle": lesson.idle}}


def record(lesson: Lesson, roof: dict[str, tuple[float, ...]], folder: Path = RESULTS, label: str = "") -> list[Path]:
    """Keep what a lesson measured as UNIT_name.jsonl, to be replayed dry, or as UNIT_name.LABEL.jsonl, to be drawn beside other machines' runs."""
    written = []
    for name, stamped in lesson.runs.items():
        tokens = {token for step, _ in stamped for row in step.rows for _, token, _ in row.writes if token is not None}
        about = {
            "unit": lesson.unit,
            "number": lesson.number,
            "device": asdict(lesson.device),
            **metering(lesson),
            "pieces": {t: lesson.decode([t]) for t in sorted(tokens)},
        }
        path = folder / f"{lesson.unit}_{name}{'.' * bool(label)}{label}.jsonl"
        write(path, stamped, lesson.machine, roof, **about)
        written.append(path)
    place = lambda name, kind: folder / f"{lesson.unit}_{name}{'.' * bool(label)}{label}.{kind}.jsonl"
    for name, lanes in lesson.sampled.items():
        written.append(place(name, "samples"))
        samples.save(written[-1], samples.Samples(lesson.machine, lanes))
    if lesson.theft:
        written.append(place("theft", "taken"))
        intervention.save(written[-1], lesson.theft)
    return written
