"""When a text ends. Decoders write for ever; here what they wrote is cut, inside an accepted block too, at the limit or where a rule says stop.

A rule is told every new token in the order of the text and answers whether it was the last: rule(token) -> bool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Rule = Callable[[int], bool]


def ends(ids: Iterable[int]) -> Rule:
    """After any of these tokens (a model may have several that mean end)."""
    ids = frozenset(ids)
    return lambda token: token in ids


def either(*rules: Rule) -> Rule:
    """After whichever comes first; every rule is told every token."""
    return lambda token: any([rule(token) for rule in rules])  # noqa: C419 (a rule that is not told would lose its place)


class Strings:
    """After any of these strings has appeared, wherever it lies across tokens. Also the text so far, as far as it is safe to show.

    piece(token) -> the text that the token completes (a streaming detokeniser), flush() -> what it still holds at the end.
    """

    def __init__(self, piece: Callable[[int], str], strings: Iterable[str] = (), flush: Callable[[], str] = lambda: ""):
        self.piece, self.strings, self.rest = piece, tuple(strings), flush
        if any(not s for s in self.strings):
            raise ValueError("a stop string is empty: it would end every text before it began")
        self.text, self.shown, self.found = "", 0, False

    def __call__(self, token: int) -> bool:
        if not self.found:
            self.add(self.piece(token))
        return self.found

    def add(self, piece: str):
        before, self.text = len(self.text), self.text + piece
        longest = max(map(len, self.strings), default=0)
        cuts = [at for s in self.strings if (at := self.text.find(s, max(before - longest + 1, 0))) >= 0]
        if cuts:
            self.text, self.found = self.text[: min(cuts)], True

    def release(self, end: bool = False) -> str:
        """What may be shown now and was not yet: all but a tail that may still turn out to begin a stop string."""
        if end and not self.found:
            self.add(self.rest())
        n = len(self.text)
        hold = 0 if end or self.found else max((k for s in self.strings for k in range(1, len(s)) if self.text.endswith(s[:k])), default=0)
        new, self.shown = self.text[self.shown : n - hold], max(self.shown, n - hold)
        return new


class Text:
    """What one request has written, and where that must end."""

    def __init__(self, limit: int | None = None, rule: Rule | None = None):
        self.limit, self.rule, self.tokens = limit, rule, {}
        self.start = self.next = None

    def take(self, writes: tuple, settled: int | None = None) -> tuple[tuple, str | None]:
        """-> (the writes that remain, why it ends here or None). Places from `settled` on may still change, so no rule looks at them yet."""
        self.tokens.update({p: t for p, t, kept in writes if kept})
        if self.start is None and self.tokens and (settled is None or min(self.tokens) < settled):  # in an open block the first place may come last
            self.start = self.next = min(self.tokens)
        while self.next in self.tokens and (settled is None or self.next < settled):
            stop = self.rule is not None and self.rule(self.tokens[self.next])
            self.next += 1
            if stop or (self.limit is not None and self.next - self.start >= self.limit):
                late = tuple((p, None, True) for p in self.tokens if p >= self.next and p not in {w[0] for w in writes})
                return tuple(w for w in writes if w[0] < self.next) + late, "stop" if stop else "length"
        return writes, None
