"""The opposite of writing: the text is there already, so one pass tells how likely each of its tokens was.

Teacher forcing (Williams and Zipser 1989) is the name of this in training.

log P(x_1 … x_n | prompt) is the sum of what each token's pass would have said, and here all of them are the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .protocol import Ask, Keep


def score(given: list[int]) -> Callable[..., Iterator]:
    """A decoder for `generate(…, decoder=score(tokens), logprobs=True)`: it "writes" the given tokens and draws nothing.

    The prompt's pass tells the first token's probability, as it does when writing; one pass over given[:-1] tells all others.

    >>> from tokenpace import generate, load
    >>> lm = load("shape:15m", dtype="float32")
    >>> told = generate(lm, [1, 2, 3], decoder=score([4, 5, 6]), logprobs=True)
    >>> told.tokens, told.passes, len(told.logprobs)
    ([4, 5, 6], 2, 3)
    """
    given = list(given)
    if not given:
        raise ValueError("nothing to score: give the token ids of a text, at least one")

    def decoder(setting):
        prompt, at = setting.prompt, len(setting.prompt)
        yield Ask("decode", prompt, 0, sure=at)
        yield Keep(at, ((at, given[0], True),))
        if len(given) > 1:
            yield Ask("verify", given[:-1], at, read=len(given) - 1)
            yield Keep(len(given) - 1, tuple((at + 1 + i, token, True) for i, token in enumerate(given[1:])))

    return decoder
