"""Unit 00: a model writes, and beside its text stands how much had to be read for it.

Every pass reads all weights, whatever it is about to say. So the odometer is passes × weights; the figure only adds it up while you read along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from ..measure.clock import Stamped
from ..measure.roof import Band
from . import plots
from .live import Shown, watch
from .plots import GREY, MEASURED, bytes_, seconds

QUESTIONS = (
    "Why is the sky blue?",
    "What is a whale?",
    "How is bread made?",
    "What is the moon made of?",
    "How does a steam engine work?",
    "Why do leaves fall in autumn?",
)
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"  # the form of a conversation that this model was trained on
LONGEST = 128  # tokens of an answer: a small model that goes on for longer begins to repeat itself
TURNS = 20  # of all questions: a fast machine is through with them in a second
LINES = 9  # of the answer that are shown


@dataclass
class Odometer:
    """A view. `cost` prices a Step, `decode` makes text of token ids, `questions[i]` is what request i answers; over after `planned` seconds."""

    cost: Callable
    decode: Callable[[list[int]], str]
    questions: Sequence[str]
    planned: float  # [s] of passes
    where: str = ""
    passes: int = 0
    seconds: float = 0.0
    read: float = 0.0  # bytes of weights
    answers: dict[int, dict[int, int]] = field(default_factory=dict)  # request -> position -> token
    size = (10.4, 3.9)

    # the fold ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, stamped: Stamped) -> None:
        step, took = stamped
        self.passes, self.seconds, self.read = self.passes + 1, self.seconds + took, self.read + self.cost(step).weight_bytes
        for row in step.rows:
            self.answers.setdefault(row.request, {}).update((position, token) for position, token, kept in row.writes if kept)

    def judge(self, band: Band | None) -> None:
        pass  # it tells what was read, and judges nothing

    def progress(self) -> float:
        return min(self.seconds / self.planned, 1.0)

    def text(self, request: int) -> str:
        tokens = self.answers[request]
        return self.decode([tokens[position] for position in sorted(tokens)])

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers.values()))

    @property
    def words(self) -> int:
        return sum(len(self.text(request).split()) for request in self.answers)

    # the picture ---------------------------------------------------------------------------------------------------

    def axes(self, figure) -> None:
        self.ax = figure.subplot_mosaic([["text", "odometer"]], width_ratios=[5, 3])
        for ax in self.ax.values():
            ax.set_axis_off()
        self.ax["odometer"].set_title("Weights read so far")
        self.writing = self.ax["text"].text(0, 1, "", va="top", linespacing=1.4)
        self.reading = self.ax["odometer"].text(0, 0.97, "", va="top", fontsize=2.4 * plots.points(), weight="bold", color=MEASURED.color)
        self.gloss = self.ax["odometer"].text(0, 0.74, "", va="top", linespacing=1.5)
        figure.supxlabel(self.where, color=GREY, fontsize=plots.points() - 1)

    def draw(self) -> None:
        if not self.passes:
            return
        latest = max(self.answers)
        self.ax["text"].set_title(self.questions[latest % len(self.questions)])
        lines = wrap(plots.printable(self.text(latest).replace("\n", " ").strip()), 68)
        self.writing.set_text("\n".join(lines[-LINES:]))
        self.reading.set_text(bytes_(self.read))
        self.gloss.set_text("\n".join(self._odometer()))

    def _odometer(self) -> list[str]:
        return [
            f"{self.passes} passes × {bytes_(self.read / self.passes)}",
            f"{self.words} words: {bytes_(self.read / max(self.words, 1))} for each",
            "",
            f"{self.tokens} tokens in {seconds(self.seconds)}:",
            f"{self.tokens / self.seconds:.3g} tokens a second",
        ]

    # the words -----------------------------------------------------------------------------------------------------

    def sentence(self) -> str:
        if not self.passes:
            return "Nothing is written yet."
        return (
            f"{self.tokens} tokens, {self.words} words, took {self.passes} passes and {seconds(self.seconds)}: "
            f"{self.tokens / self.seconds:.3g} tokens a second. Each pass read {bytes_(self.read / self.passes)} of weights, "
            f"in all {bytes_(self.read)}: {bytes_(self.read / max(self.words, 1))} for each word." + (f" [{self.where}]" if self.where else "")
        )


def until(stamped: Iterable[Stamped], seconds: float) -> Iterator[Stamped]:
    """The passes of a run, until they have taken so many seconds.

    >>> list(until([("a pass", 2.0), ("another", 2.0), ("a third", 2.0)], 3))
    [('a pass', 2.0), ('another', 2.0)]
    """
    try:
        for one in stamped:
            yield one
            seconds -= one[1]
            if seconds <= 0:
                return
    finally:
        getattr(stamped, "close", lambda: None)()  # frees what the run holds


def odometer(unit, seconds: float, questions: Sequence[str] = QUESTIONS, **shown) -> Shown:
    """Let the model of `unit`, an open lesson, answer questions for so many seconds, and show what it writes and reads.

    `questions` are asked one after another, and again when all are answered; a dry lesson replays the answers to the usual ones.
    `shown` goes to `watch` (live, screen).
    """
    questions = QUESTIONS if unit.mode == "dry" else list(questions)
    run = unit.run("odometer", [CHAT.format(question) for question in questions] * TURNS, slots=1, max_new_tokens=LONGEST)
    view = Odometer(unit.price, unit.decode, questions, seconds, unit.where)
    return watch(view, {"write": until(run, seconds)}, seconds=2 * seconds + 5, roof=unit.roof, **shown)
