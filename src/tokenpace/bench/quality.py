"""What fewer bits cost: the same text through the model in float32 and on other weights, token for token.

The text is Python's own manual (`pydoc_data.topics`): English that every installation has. Agreement counts the places in which the likeliest
next token is the same one; loss is the mean of -log P of the token that comes.
"""

from __future__ import annotations

import torch

from ..load import Lm

TOPICS = ("assignment", "bltin-types", "class", "context-managers", "debugger", "exceptions", "formatstrings", "import", "objects", "with")


def passages(encode, tokens: int, each: int = 250) -> list[list[int]]:
    """Some 250 tokens of each topic, and again, until there are so many."""
    from pydoc_data.topics import topics

    known = [encode(topics[name]) for name in TOPICS if name in topics]
    found, at = [], 0
    while sum(map(len, found)) < tokens:
        cut = [text[at : at + each] for text in known if len(text) > at]
        if not cut:
            raise RuntimeError(f"this Python's manual has fewer than {tokens} tokens of the topics wanted")
        found, at = found + cut, at + each
    return found


@torch.no_grad()
def told(lm: Lm, texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """For every token but the first of each text: the likeliest token there, and -log P of the one that comes."""
    best, loss = [], []
    for ids in texts:
        logits = lm.model(torch.tensor([ids], device=lm.device))[0, :-1].float()
        best.append(logits.argmax(-1))
        loss.append(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:], device=lm.device), reduction="none"))
    return torch.cat(best), torch.cat(loss)


def quality(exact: Lm, others: dict[str, Lm], tokens: int = 2000) -> dict[str, dict]:
    """name -> agreement with `exact` and loss beside its own."""
    texts, found = passages(exact.tokenizer.encode, tokens), {}
    best, loss = told(exact, texts)
    for name, lm in others.items():
        its, lost = told(lm, texts)
        found[name] = {"tokens": len(best), "agree": float((its == best).float().mean()), "loss": float(lost.mean()), "exact": float(loss.mean())}
    return found
