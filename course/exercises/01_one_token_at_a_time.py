"""Unit 01: the loop, the probability of a text, the floor, the loop as a decoder of the real model, and the clock that everything is measured by."""

import math
import time

import torch

from tokenpace import Ask, Keep, Sampler, Stamped
from tokenpace.exercises import exercise

# 01.1: the loop ----------------------------------------------------------------------------------------------------

loop = exercise(
    "01.1",
    "generate",
    task="Write the loop: continue a prompt by n tokens, always the likeliest.",
    difficulty=1,
    minutes=5,
    needs="",
    hints=(
        "Work on a copy of the prompt that grows by one token at a time. Every pass gets all tokens there are so far.",
        "`int(next_logits(tokens).argmax())` is the likeliest token. Append it, n times; what was appended is the answer.",
    ),
    explanation="Each pass is given everything before it, and what it makes is needed by the next: nothing in this loop can be done early. "
    "It runs exactly n passes, for the pass after the last token would be computed for nothing. "
    "It feeds the whole text again at every pass, which is wasteful; what the waste is, and how a cache avoids it, is unit 03.",
)


@loop.solution
def generate(next_logits, prompt, n):
    """Continue `prompt`, a list of token ids, by n tokens, each the likeliest. Return these n as a list of int.

    next_logits(tokens) runs one pass over a list of tokens. It returns a tensor with a number for every token of the
    vocabulary, its logit: the larger, the likelier is that token as the next one.

    With a model that always thinks the sum of all tokens likeliest, generate(model, [1, 2], 3) is [3, 6, 12].
    """
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(next_logits(tokens).argmax()))
    return tokens[len(prompt) :]


def likes(tokens):
    """A made-up model of 11 tokens. Which one it likes best hangs on all tokens and on their order; its logits are 3 and less."""
    if not isinstance(tokens, list):
        raise TypeError(f"next_logits takes a list of token ids, and was given {type(tokens).__name__}")
    best = (sum(i * token for i, token in enumerate(tokens, 1)) + len(tokens)) % 11
    return 3 - (torch.arange(11) - best).abs().float()


def counted(generate, prompt, n):
    passes = []
    tokens = generate(lambda tokens: passes.append(1) or likes(tokens), prompt, n)
    return {"tokens": tokens, "passes": len(passes)}


@loop.trial("five tokens after a prompt of three")
def _(generate):
    return counted(generate, [3, 1, 4], 5)


@loop.trial("one token after a prompt of one")
def _(generate):
    return counted(generate, [7], 1)


@loop.mistake("You fed the last token alone. It has forgotten what stands before it: a pass must get all tokens so far.")
def _(next_logits, prompt, n):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(next_logits(tokens[-1:]).argmax()))
    return tokens[len(prompt) :]


@loop.mistake("All your tokens came from the prompt alone: what a pass made has to be fed to the next.")
def _(next_logits, prompt, n):
    return [int(next_logits(list(prompt)).argmax()) for _ in range(n)]


@loop.mistake("`tokens = prompt` is no copy: the caller's own list grew with yours, so nothing lies after its end. `list(prompt)` is one.")
def _(next_logits, prompt, n):
    tokens = prompt
    for _ in range(n):
        tokens.append(int(next_logits(tokens).argmax()))
    return tokens[len(prompt) :]


@loop.mistake("The prompt is in your answer. Return only what was written.")
def _(next_logits, prompt, n):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(next_logits(tokens).argmax()))
    return tokens


@loop.mistake("That's the largest logit itself. Wanted is whose it is: the place of the largest is the token's id.")
def _(next_logits, prompt, n):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(next_logits(tokens).max()))
    return tokens[len(prompt) :]


@loop.mistake("`next_logits(tokens)` is one row, the last token's already. With `[-1]` you took from it the logit of one token of the vocabulary.")
def _(next_logits, prompt, n):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(next_logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@loop.mistake("The tokens are right, but you ran one pass too many: nobody wants what follows the last token.")
def _(next_logits, prompt, n):
    tokens, logits = list(prompt), next_logits(list(prompt))
    for _ in range(n):
        tokens.append(int(logits.argmax()))
        logits = next_logits(tokens)
    return tokens[len(prompt) :]


@loop.mistake("One token too many: the prompt's own pass makes a token, too.")
def _(next_logits, prompt, n):
    tokens = list(prompt)
    for _ in range(n + 1):
        tokens.append(int(next_logits(tokens).argmax()))
    return tokens[len(prompt) :]


# 01.2: log P -------------------------------------------------------------------------------------------------------

product = exercise(
    "01.2",
    "log_p",
    task="Compute log P of a given text from the logits of one pass over it.",
    difficulty=2,
    minutes=8,
    needs="import torch",
    hints=(
        "Which row of the logits was computed without knowing token i? The one just before it. And `logits.log_softmax(-1)` turns rows of logits "
        "into rows of log-probabilities.",
        "Sum `rows[i - 1, text[i]]` over the places i = prompt, prompt + 1, … up to the last of the text.",
    ),
    explanation="Row i - 1 has seen the tokens up to i - 1 and none after, so it is the conditional distribution of token i. "
    "Logits become probabilities by softmax, over the vocabulary; the logarithm of the product of all factors is the sum of their logarithms. "
    "The prompt was given, so its tokens are no factors; and the last row speaks of a token that isn't there.",
)


@product.solution
def log_p(logits, text, prompt):
    """log P of the tokens of `text` after the first `prompt` ones, each given all before it. Return a float.

    logits [T, V]: what one pass over `text`, a list of T token ids, told: row i speaks of the token after text[i].
    prompt: how many tokens at the beginning were given, not written; at least 1.

    With two tokens in the vocabulary and all logits 0, every token has probability 1/2. So
    log_p(torch.zeros(3, 2), [0, 1, 1], 1) is 2 log(1/2) = -1.386: two tokens follow the prompt.
    """
    rows = logits.log_softmax(-1)
    return float(sum(rows[i - 1, text[i]] for i in range(prompt, len(text))))


def told(rows, vocabulary):
    """Made-up logits of a pass."""
    return 3 * torch.sin(1.7 * torch.arange(rows * vocabulary, dtype=torch.float64).view(rows, vocabulary) + 0.3)


@product.trial("a text of six tokens, one of them the prompt")
def _(log_p):
    return log_p(told(6, 5), [0, 4, 1, 1, 3, 2], 1)


@product.trial("a text of seven tokens, three of them the prompt")
def _(log_p):
    return log_p(told(7, 4), [1, 0, 2, 3, 3, 0, 1], 3)


@product.mistake("Off by one: row i has seen token i already. It speaks of the token after it.")
def _(logits, text, prompt):
    rows = logits.log_softmax(-1)
    return float(sum(rows[i, text[i]] for i in range(prompt, len(text))))


@product.mistake("You summed the logits themselves. They are no log-probabilities before each row is normalised.")
def _(logits, text, prompt):
    return float(sum(logits[i - 1, text[i]] for i in range(prompt, len(text))))


@product.mistake(
    "`rows[places, tokens]` with a slice takes all those tokens' columns of every row. Take from each row one: that of the token after it."
)
def _(logits, text, prompt):
    return float(logits.log_softmax(-1)[prompt - 1 : -1, text[prompt:]].sum())


@product.mistake("You summed the largest log-probability of each row. Wanted is that of the token that stands in the text, likely or not.")
def _(logits, text, prompt):
    return float(logits.log_softmax(-1)[prompt - 1 : -1].amax(-1).sum())


@product.mistake("You normalised over the places of the text. Probabilities add up to 1 over the vocabulary, in each row.")
def _(logits, text, prompt):
    rows = logits.log_softmax(0)
    return float(sum(rows[i - 1, text[i]] for i in range(prompt, len(text))))


@product.mistake("That's the mean over the tokens. log P of a text is the sum.")
def _(logits, text, prompt):
    rows = logits.log_softmax(-1)
    return float(sum(rows[i - 1, text[i]] for i in range(prompt, len(text))) / (len(text) - prompt))


@product.mistake("The prompt is counted. It was given, so its tokens are no factors.")
def _(logits, text, prompt):
    rows = logits.log_softmax(-1)
    return float(sum(rows[i - 1, text[i]] for i in range(1, len(text))))


@product.mistake("The first token after the prompt is missing. Its factor stands in the row of the prompt's last token.")
def _(logits, text, prompt):
    rows = logits.log_softmax(-1)
    return float(sum(rows[i - 1, text[i]] for i in range(prompt + 1, len(text))))


@product.mistake("You added up probabilities. The product of probabilities is the sum of their logarithms.")
def _(logits, text, prompt):
    rows = logits.softmax(-1)
    return float(sum(rows[i - 1, text[i]] for i in range(prompt, len(text))))


@product.mistake("That's P itself. For a long text it is too small for any number format: return its logarithm.")
def _(logits, text, prompt):
    rows = logits.log_softmax(-1)
    return math.exp(sum(rows[i - 1, text[i]] for i in range(prompt, len(text))))


@product.mistake("The sign: that's the loss that training makes small. log P of a text is never above 0.")
def _(logits, text, prompt):
    rows = logits.log_softmax(-1)
    return -float(sum(rows[i - 1, text[i]] for i in range(prompt, len(text))))


# 01.3: the floor ---------------------------------------------------------------------------------------------------

least = exercise(
    "01.3",
    "floor",
    task="Compute the least seconds in which n tokens can be written, if arithmetic took no time.",
    difficulty=1,
    minutes=4,
    needs="",
    hints=(
        "How many passes are run from the prompt to the n-th token? Each reads all weights once.",
        "The prompt goes through in one pass, and that pass makes the first token. A byte has 8 bits.",
    ),
    explanation="The prompt is one pass, however long it is, and its pass writes the first token; each of the other n - 1 tokens needs its own. "
    "So there are n passes, each reads weights × bits ÷ 8 bytes, and memory gives `bandwidth` of them a second. "
    "No FLOP/s is in it: that is what makes it a floor.",
)


@least.solution
def floor(weights, bits, bandwidth, prompt, n):
    """The least seconds from handing over a prompt of `prompt` tokens to having n new ones, if only reading the weights took time.

    weights: how many numbers the model consists of, bits: of each of them, bandwidth: bytes that memory gives in a second.

    A model of 1,000 weights of 16 bits, read at 4,000 bytes a second, writes 6 tokens in no less than 3 seconds.
    """
    passes = n
    return passes * weights * bits / 8 / bandwidth


@least.trial("20 tokens after a prompt of 5, 135 million weights of 16 bits, 40 GB/s")
def _(floor):
    return floor(135e6, 16, 40e9, 5, 20)


@least.trial("3 tokens after a prompt of 100, 8 billion weights of 4 bits, 3.35 TB/s")
def _(floor):
    return floor(8e9, 4, 3.35e12, 100, 3)


@least.mistake("Bits and bytes: memory was given in bytes a second, a weight in bits.")
def _(weights, bits, bandwidth, prompt, n):
    return n * weights * bits / bandwidth


@least.mistake("You gave every token of the prompt a pass of its own. It was known as a whole: how many passes does it need?")
def _(weights, bits, bandwidth, prompt, n):
    return (prompt + n) * weights * bits / 8 / bandwidth


@least.mistake("One pass too many: the prompt's pass makes the first of the n tokens.")
def _(weights, bits, bandwidth, prompt, n):
    return (n + 1) * weights * bits / 8 / bandwidth


@least.mistake("The prompt's own pass is missing: it reads the weights too.")
def _(weights, bits, bandwidth, prompt, n):
    return (n - 1) * weights * bits / 8 / bandwidth


@least.mistake("That's how long a single pass takes.")
def _(weights, bits, bandwidth, prompt, n):
    return weights * bits / 8 / bandwidth


@least.mistake("Upside down: bytes divided by bytes a second are seconds.")
def _(weights, bits, bandwidth, prompt, n):
    return bandwidth / (n * weights * bits / 8)


# 01.4: the decoder -------------------------------------------------------------------------------------------------

conversation = exercise(
    "01.4",
    "autoregressive",
    task="Write the same loop as a decoder, a conversation that asks for passes and says what to keep.",
    difficulty=4,
    minutes=12,
    target="tokenpace.decode.autoregressive:autoregressive",
    needs="from tokenpace import Ask, Keep, Sampler",
    hints=(
        "Two things change from pass to pass: which tokens are new, and at which position the first of them stands. "
        "Begin with the whole prompt at position 0, and write one loop that never ends.",
        "After the answer, the position moves on by as many tokens as were fed; there the drawn token is written. It is also all that is new in "
        "the next pass.",
    ),
    explanation="The keys and values of all fed tokens stay in the cache, so only the newest token has to be fed. "
    "The token that a pass draws is written one place after the last token fed, but it isn't in the cache yet: it gets there by being fed. "
    "The loop has no end of its own, because who drives the decoder decides when the text is over. "
    "The library's own says one thing more, sure=…: that these tokens stay whatever comes out, so that a long prompt may be cut into chunks.",
)


@conversation.solution
def autoregressive(prompt, sampler=Sampler(), seed=0):  # noqa: B008
    """A decoder, to be written as a generator: one token a pass, drawn from what the pass said; every token is fed once and kept.

    prompt: a list of token ids, of any length. Pass `sampler` and `seed` on to every Ask: they say how tokens are drawn.

    out = yield Ask("decode", tokens, at, sampler=sampler, seed=seed)   # feed a list of tokens; the first stands at position `at`
    yield Keep(n, ((position, token, True),))                           # n of them stay in the cache; a token is written
    out.tokens is a list of one: the token that was drawn.
    """
    fresh, at = list(prompt), 0
    while True:
        out = yield Ask("decode", fresh, at, sampler=sampler, seed=seed)
        at += len(fresh)
        yield Keep(len(fresh), ((at, out.tokens[0], True),))
        fresh = out.tokens


class Said:
    """What came of a made-up pass: the token that all tokens before it decide."""

    def __init__(self, known):
        self.tokens = [(sum(i * token for i, token in enumerate(known, 1)) + len(known)) % 97]


def talk(autoregressive, prompt, passes):
    """Answer a decoder a few times, as a driver does; tell what each pass was fed, with which law, and what was kept and written."""
    conversation, cached, heard = autoregressive(prompt, Sampler(temperature=0.5), 7), [], {}
    for number in range(1, passes + 1):
        ask = next(conversation, None)
        if ask is None:
            heard[f"pass {number}"] = "the conversation ended before it"
            break
        if not isinstance(ask, Ask):
            raise TypeError(f"the conversation goes Ask, Keep, Ask, Keep, …; where an Ask was due it yielded {ask!r}")
        known = [*cached[: ask.at], *ask.tokens]
        keep = conversation.send(Said(known))
        if not isinstance(keep, Keep):
            raise TypeError(f"the conversation goes Ask, Keep, Ask, Keep, …; where a Keep was due it yielded {keep!r}")
        if any(not isinstance(write, (tuple, list)) or len(write) != 3 for write in keep.writes):
            raise TypeError(
                f"a Keep has a tuple of writes, each (position, token, True); a single one needs its comma: (write,). This has {keep.writes!r}"
            )
        stay = keep.stay if isinstance(keep.stay, int) else len(keep.stay)
        cached = known[: ask.at + stay]
        law = {"temperature": ask.sampler.temperature, "seed": ask.seed}
        wrote = [tuple(write) for write in keep.writes]
        heard[f"pass {number}"] = {"phase": ask.phase, "fed": list(ask.tokens), "at": ask.at, **law, "kept": stay, "wrote": wrote}
    return heard


@conversation.trial("four passes after a prompt of three tokens")
def _(autoregressive):
    return talk(autoregressive, [5, 3, 8], 4)


@conversation.trial("two passes after a prompt of one token")
def _(autoregressive):
    return talk(autoregressive, [6], 2)


@conversation.mistake("The text would be right, but each pass was fed all of it again. What is in the cache needn't be fed: feed what is new.")
def _(prompt, sampler, seed):
    tokens = list(prompt)
    while True:
        out = yield Ask("decode", tokens, 0, sampler=sampler, seed=seed)
        yield Keep(len(tokens), ((len(tokens), out.tokens[0], True),))
        tokens = tokens + out.tokens


@conversation.mistake("The position stays where it is: each pass overwrites what the pass before it had cached. It has to move on by what was fed.")
def _(prompt, sampler, seed):
    fresh, at = list(prompt), 0
    while True:
        out = yield Ask("decode", fresh, at, sampler=sampler, seed=seed)
        yield Keep(len(fresh), ((at + len(fresh), out.tokens[0], True),))
        fresh = out.tokens


@conversation.mistake("Nothing was kept in the cache, so the next pass would know nothing of the text before its token.")
def _(prompt, sampler, seed):
    fresh, at = list(prompt), 0
    while True:
        out = yield Ask("decode", fresh, at, sampler=sampler, seed=seed)
        at += len(fresh)
        yield Keep(0, ((at, out.tokens[0], True),))
        fresh = out.tokens


@conversation.mistake("Of the prompt's tokens only one was kept. All that were fed have to stay: the next pass needs them.")
def _(prompt, sampler, seed):
    fresh, at = list(prompt), 0
    while True:
        out = yield Ask("decode", fresh, at, sampler=sampler, seed=seed)
        at += len(fresh)
        yield Keep(1, ((at, out.tokens[0], True),))
        fresh = out.tokens


@conversation.mistake("The drawn token was written over the last token fed. Its place is the one after that.")
def _(prompt, sampler, seed):
    fresh, at = list(prompt), 0
    while True:
        out = yield Ask("decode", fresh, at, sampler=sampler, seed=seed)
        at += len(fresh)
        yield Keep(len(fresh), ((at - 1, out.tokens[0], True),))
        fresh = out.tokens


@conversation.mistake("The drawn token was written where the fed tokens begin. Its place is the one after them.")
def _(prompt, sampler, seed):
    fresh, at = list(prompt), 0
    while True:
        out = yield Ask("decode", fresh, at, sampler=sampler, seed=seed)
        yield Keep(len(fresh), ((at, out.tokens[0], True),))
        at += len(fresh)
        fresh = out.tokens


@conversation.mistake("A token was fed twice: the last one of a pass is in the cache already, and came again with the next.")
def _(prompt, sampler, seed):
    fresh, at = list(prompt), 0
    while True:
        out = yield Ask("decode", fresh, at, sampler=sampler, seed=seed)
        at += len(fresh)
        yield Keep(len(fresh), ((at, out.tokens[0], True),))
        fresh = fresh[-1:] + out.tokens


@conversation.mistake("The conversation ended after one pass. Let it go on for ever: who drives it says when the text is over.")
def _(prompt, sampler, seed):
    out = yield Ask("decode", list(prompt), 0, sampler=sampler, seed=seed)
    yield Keep(len(prompt), ((len(prompt), out.tokens[0], True),))


@conversation.mistake("sampler and seed got lost on the way: without them every Ask takes the likeliest token, whatever was wanted.")
def _(prompt, sampler, seed):
    fresh, at = list(prompt), 0
    while True:
        out = yield Ask("decode", fresh, at)
        at += len(fresh)
        yield Keep(len(fresh), ((at, out.tokens[0], True),))
        fresh = out.tokens


@conversation.mistake("False means: written, and taken back. The token shall stay in the text.")
def _(prompt, sampler, seed):
    fresh, at = list(prompt), 0
    while True:
        out = yield Ask("decode", fresh, at, sampler=sampler, seed=seed)
        at += len(fresh)
        yield Keep(len(fresh), ((at, out.tokens[0], False),))
        fresh = out.tokens


# 01.5: the clock ---------------------------------------------------------------------------------------------------

clock = exercise(
    "01.5",
    "timed",
    task="Time every pass of a stream, and nothing but the passes.",
    difficulty=3,
    minutes=8,
    target="tokenpace.measure.clock:timed",
    needs="import time\n\nfrom tokenpace import Stamped",
    hints=(
        "`for step in steps` runs the pass before the loop's body is entered. So the clock must be started before, for the first pass, too.",
        "Whenever you read the clock, wait first. And after `yield` the reader has had its time: wait, then start the clock again.",
    ),
    explanation="A generator stands still at its `yield` while the reader draws or prints, so a clock that runs on would count that. "
    "And a device that works off a queue has been told what to do, not done it: without waiting one measures how fast it can be told. "
    "Hence the wait before both readings: before the end, so that the pass is over; before the start, so that nobody else's work is counted.",
)


@clock.solution
def timed(steps, sync=lambda: None, now=time.perf_counter):
    """A generator: for every step of `steps`, as it comes, yield Stamped(step, seconds): how long its pass took.

    steps: an iterator; asking it for its next step runs a pass.
    sync(): wait until all work that is queued on the device is done.
    now(): read the clock, in seconds.

    What the reader of this stream does between two steps (drawing a figure) is not counted.
    """
    sync()
    start = now()
    for step in steps:
        sync()
        yield Stamped(step, now() - start)
        sync()
        start = now()


class Machine:
    """Its clock moves only when something works, so every second is somebody's."""

    def __init__(self, queued=0.0):
        self.seconds, self.queued = 0.0, queued

    def now(self):
        return self.seconds

    def sync(self):
        self.seconds, self.queued = self.seconds + self.queued, 0.0

    def passes(self, each, queues):
        """Passes of so many seconds: what the machine does at once, and what it only queues."""
        for number, (here, later) in enumerate(zip(each, queues)):
            self.seconds, self.queued = self.seconds + here, self.queued + later
            yield f"pass {number}"


def clocked(timed, machine, each, queues, reading=0.0, drawing=0.0):
    """What a reader gets that takes `reading` seconds over every step, and leaves `drawing` seconds of work in the queue."""
    got = []
    for stamped in timed(machine.passes(each, queues), machine.sync, machine.now):
        if not isinstance(stamped, tuple) or len(stamped) != 2:
            raise TypeError(f"yield Stamped(step, seconds), once for each step and nothing else; this yielded {stamped!r}")
        step, seconds = stamped
        got.append((type(stamped).__name__, step, round(seconds, 6)))
        machine.seconds, machine.queued = machine.seconds + reading, machine.queued + drawing
    return got


@clock.trial("three passes on a processor, and a reader that takes its time")
def _(timed):
    return clocked(timed, Machine(), (3, 1, 2), (0, 0, 0), reading=10)


@clock.trial("three passes that are queued on a device")
def _(timed):
    return clocked(timed, Machine(), (0.1, 0.1, 0.1), (3, 1, 2))


@clock.trial("a device with work in its queue before the first pass, and a reader that queues more")
def _(timed):
    return clocked(timed, Machine(queued=20), (0.1, 0.1, 0.1), (3, 1, 2), reading=10, drawing=5)


@clock.mistake("What the reader did between two steps is counted. After `yield`, start the clock again.")
def _(steps, sync, now):
    sync()
    start = now()
    for step in steps:
        sync()
        end = now()
        yield Stamped(step, end - start)
        start = end


@clock.mistake("You never wait for the device: you timed how fast work is queued, not how fast it is done. Call sync before you read the clock.")
def _(steps, sync, now):
    start = now()
    for step in steps:
        yield Stamped(step, now() - start)
        start = now()


@clock.mistake("You wait at the end of a pass but not at its beginning: work that was queued before is counted as the pass's own.")
def _(steps, sync, now):
    start = now()
    for step in steps:
        sync()
        yield Stamped(step, now() - start)
        start = now()


@clock.mistake("Your clock starts when the pass is over: `for` has run it before the body begins.")
def _(steps, sync, now):
    for step in steps:
        sync()
        start = now()
        sync()
        yield Stamped(step, now() - start)


@clock.mistake("Your clock starts inside the loop, when the pass has been queued already: only waiting for it is timed.")
def _(steps, sync, now):
    for step in steps:
        start = now()
        sync()
        yield Stamped(step, now() - start)


@clock.mistake("The seconds add up from pass to pass: the clock was started once and never again.")
def _(steps, sync, now):
    sync()
    start = now()
    for step in steps:
        sync()
        yield Stamped(step, now() - start)
        sync()


@clock.mistake("All passes were run before the first was handed out, so the first has the time of all. Hand out each as it comes.")
def _(steps, sync, now):
    sync()
    start = now()
    for step in list(steps):
        sync()
        yield Stamped(step, now() - start)
        sync()
        start = now()


@clock.mistake("Yield Stamped(step, seconds), a pair with names: whoever reads the stream asks for .step and .seconds.")
def _(steps, sync, now):
    sync()
    start = now()
    for step in steps:
        sync()
        yield step, now() - start
        sync()
        start = now()
