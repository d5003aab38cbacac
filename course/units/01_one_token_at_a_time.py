# %% [markdown]
# # 01 · One token at a time
#
# *Core unit. About an hour, more than half of it for the five exercises; the last of them can wait. You need nothing but this notebook; press*
# Shift+Enter *on one cell after another.*
#
# You ask a language model a question, and the answer drips onto the screen word by word, whatever the machine costs.
# **Why can't it write the whole answer at once?**
#
# That question has two answers. One is about probability: what a model computes *is* one token, given all before it.
# The other is about machines: to compute that one token, all of the model has to be fetched from memory, and then it is fetched again for the next.
# In this unit you see both on your own machine, with a real model, before the rest of the course takes them apart.
#
# The next cell loads the model and finds out what this machine can do. At its first run that takes half a minute, for the fast kernels are compiled.
# It ends with a line of words that come back all the time:
#
# - **weights**: the numbers that a model consists of. It was trained once, and since then they don't change.
# - **roof**: the most this machine reads a second, as a loop that only reads measured it, and the most it multiplies a second, as a large
#   matrix product measured it.
# - **FLOP**: one addition or multiplication of two numbers; a GFLOP is a billion of them. **bfloat16** is a number in two bytes, float32 one in four.

# %%
import math
import time
from dataclasses import replace
from statistics import median

import torch

import tokenpace as tp
from tokenpace import lesson
from tokenpace.decode.score import score
from tokenpace.measure.ledger import entry
from tokenpace.show import controls, ledgers, live, race, theft

unit = lesson.start("01")
print(unit)

# %% [markdown]
# ## Watch it
#
# The model is SmolLM2-135M-Instruct, a small one. Nothing below depends on its being small; the numbers do. It doesn't see text but *tokens*:
# pieces of words, each a number.
#
# A **pass** is one run through the model. Below, every line is one pass. In the first, the *prefill*, the model gets the whole prompt, the text that
# it is to go on from. After that come *decode* passes: each is fed one token, the one that the pass before it made, and makes the next.
#
# What a pass computes is a probability for every token there is. This unit always takes the likeliest (that is called *greedy*), so every run
# writes the same text; unit 02 draws.
#
# In the code a pass comes as a *Step*. It can serve several texts at once, each a *row*; here there is one, `rows[0]`. A row tells what it was fed
# and what it wrote: `writes` is a list of (position, token, whether it stays).

# %%
PROMPT = "Gravity is"
for step, seconds in unit.run("watch", PROMPT, max_new_tokens=12):
    row = step.rows[0]
    token = unit.decode([row.writes[0][1]])
    told = f"{row.phase:8} knew {row.context:2} tokens, was fed {row.width}, wrote {token!r:14}"
    print(told, f"{1e3 * seconds:6.1f} ms")

# %% [markdown]
# Look at the column *was fed*. Nothing in the model's arithmetic says that it must be one: the prefill took the whole prompt in a single pass
# (more tokens than words, for the model has no token for the whole of *Gravity*).
# The loop is what says so. The input of a pass is the output of the pass before it.
#
# ## Build the loop
#
# More closely: a pass gives a number for every token there is (all of them are the *vocabulary*), the token's **logit**. The larger it is, the
# likelier is that token as the next.
# (How logits become probabilities comes below.) With that you can write a text generator yourself, in a few lines: everything known so far goes in,
# the place of the largest logit is the next token, and it is put to what is known.

# %% exercise="01.1"

# %% [markdown]
# Now your loop writes with the real model. (If the exercise isn't done, the reference takes its place, and the cell says so. It is like that in
# every unit, so you can always go on.) `unit.plain` is the same model once more, on the kernels that PyTorch has for everything; those
# can be called the way your loop calls the model.

# %%
loop, plain, start = tp.learner_or_reference("01.1"), unit.plain, unit.encode(PROMPT)
wrote = loop(lambda tokens: plain.model(torch.tensor([tokens], device=plain.device))[0, -1], start, 12)
print(unit.decode(wrote) if unit.lm else f"tokens {wrote}, of a model that was never trained: a dry lesson has no other")
print("the same tokens as the library's:", wrote == tp.generate(plain, start, max_new_tokens=12).tokens)

# %% [markdown]
# Your loop fed the whole text at every pass, and the run before it one token only: what a pass needs to know of the tokens before, it had kept. That
# store is called the *KV cache*, and unit 03 is about it. It doesn't change what is asked here, for either way there is a pass for each token.
#
# ## Predict
#
# Now take a text of some length and let the model go over it twice.
#
# - **Scoring.** The text is there already. After the prompt, *one* pass over all of it says how likely each of its tokens was.
# - **Writing.** The same text has to be written: one pass for each token.
#
# Both do the same arithmetic, the same matrices times the same numbers. The GFLOP in the figure are calculated from the shapes of the matrices.
#
# **How many times as long as scoring does writing take, on this machine?** Write down a number before you go on. A wrong one teaches more than none.

# %%
guess = unit.predict("ratio", None)  # a number in place of None

# %% [markdown]
# ## Measure
#
# First a text to work on, written by the model itself.

# %%
n = unit.size(quick=64, full=256)
length = {"max_new_tokens": n + 1, "min_new_tokens": n + 1}
first = []
for step, _ in unit.run("first", PROMPT, logprobs=True, **length):
    first.append(step)
    print(unit.decode([token for _, token, _ in step.rows[0].writes]), end="", flush=True)
given = tp.canvas(first)  # the tokens that these passes wrote, as a list

# %% [markdown]
# Then the race: the scoring bar, then the writing bar, each as it is measured.
# ◆ is *predicted*, from what a pass has to read and to multiply, and from how fast this machine reads and multiplies, as probed when this
# notebook started. The pale bar behind it is where ◆ would lie under the roof as it was just before and just after the run.
#
# Under the bars is the same race as a curve, at the right how many times as long writing took, and below that the odometer: the weights that were
# read from memory to write the text, which grows at the bottom. The clock starts when the prompt's pass is over, for both of them need that one.

# %%
shown = race.race(unit, PROMPT, given, guess)

# %% [markdown]
# Run it once more, with the button or with the line above; both do the same. Two runs are never quite alike: other programs use the same memory.
# That is why the roof is probed before *and* after each run. If it moved too far in between, or if some passes took far longer than others, the
# figure gives no verdict and says so.
# (The cells below speak of the run that the line made.)

# %%
controls.button("Race again", race.race, unit, PROMPT, given, guess, screen=shown.screen)

# %% [markdown]
# Measured lies above predicted; by how much, the sentence under the figure says. ◆ is a bound, not a forecast: what the pass would take if it did
# nothing but read at the speed of a loop that only reads, or nothing but multiply at the probed speed. A pass also starts many small operations,
# waits for threads and rarely reads at full speed. So the gap doesn't say that memory is innocent, and it doesn't yet prove that memory is guilty.
# If a bar is *shorter* than its ◆, the probe was disturbed: run the first cell again.
#
# The course rests on a list of **claims**, and every unit puts some of them to this machine. `unit.claim` judges one by what was just measured:
# it holds, it holds if something else is given, it doesn't hold here, or it couldn't be told. `tp.claims()` shows all of them.
# The first one is the odometer's: that the same weights are read again for every token.

# %%
unit.claim("again", shown)

# %% [markdown]
# ## Explain
#
# ### A text's probability is a product, and its factors need one another
#
# What a language model computes is one conditional probability: given all tokens so far, how likely is each token as the next? A whole text's
# probability is the product of those
# (this is the chain rule of probability, no approximation):
#
# $$P(x_1 \ldots x_n) = P(x_1)\,P(x_2 \mid x_1)\,P(x_3 \mid x_1 x_2) \cdots P(x_n \mid x_1 \ldots x_{n-1})$$
#
# ($P(x_2 \mid x_1)$ is the probability of $x_2$ after $x_1$.) When the text is *given*, all that stands after each $\mid$ is known, so all factors
# can be computed side by side, in one pass. When it is being *written*, $x_2$ has to be chosen before the third factor means anything.
#
# Below is log P, the logarithm of the same product (a product of hundreds of small numbers is too small to print,
# the sum of their logarithms is not). It is added up once from as many passes as there are tokens, and once from two: the prompt's pass, which
# tells the first token's probability, and a single pass for all others. (That is one more on either side than in the race, which left out the
# prompt's pass and the token that it wrote.)

# %%
told = [step for step, _ in unit.run("told", PROMPT, decoder=score(given), logprobs=True, **length)]
written = [p for step in first for row in step.rows for p in row.logprobs]
scored = [p for step in told for row in step.rows for p in row.logprobs]
print(f"written in {len(first):3} passes: log P = {sum(written):8.2f}")
print(f"scored  in {len(told):3} passes: log P = {sum(scored):8.2f}")
gaps = [abs(a - b) for a, b in zip(written, scored)]
print(f"log P of a token differs by {sum(gaps) / len(gaps):.4f} on average, by {max(gaps):.3f} at most: the rounding of {unit.dtype}")

# %% [markdown]
# The model's numbers have few digits, and one pass adds them up in another order than many do. So each token's log P is off by a little, this way
# or that, and it is the little that the last line says.
#
# How does log P come out of a pass? The pass gives a row of logits for *each* token that it was fed, and the row of a token speaks of the token
# after it. The row becomes probabilities by **softmax**: the probability of token $j$ is $e^{z_j} / \sum_k e^{z_k}$, where $z$ are the logits of the
# row. In PyTorch `logits.log_softmax(-1)` does that to all rows at once, and takes the logarithm.

# %% exercise="01.2"

# %% [markdown]
# With it you compute yourself what the model thought of its text: a single pass over prompt and text, and your sum. In a lesson that measures it is
# the number that was printed above, up to rounding.

# %%
added, start = tp.learner_or_reference("01.2"), unit.encode(PROMPT)
text = [*start, *(given if unit.lm else range(20))]
logits = plain.model(torch.tensor([text], device=plain.device))[0].float()
print(f"one pass over {len(text)} tokens gave {len(logits)} rows of {logits.shape[1]:,} logits")
print(f"log P of the {len(text) - len(start)} after the prompt = {added(logits, text, len(start)):.2f}")

# %% [markdown]
# And do the factors really need *all* tokens before them? Swap a single early token of the text, keep all others, and score it again. (Any other
# token would do. It is the next in the vocabulary's own order, which means nothing.)

# %%
swapped = [*given[:4], given[4] + 1, *given[5:]]
other = unit.run("swapped", PROMPT, decoder=score(swapped), logprobs=True, **length)
rescored = [p for step, _ in other for row in step.rows for p in row.logprobs]
changed = [a != b for a, b in zip(scored, rescored)]
print(f"token 5 was {unit.decode([given[4]])!r}, is {unit.decode([swapped[4]])!r}")
print(f"of the {len(changed[:4])} probabilities before it, {sum(changed[:4])} changed")
most = max(abs(a - b) for a, b in zip(scored[5:], rescored[5:]))
print(f"of the {len(changed[5:])} after it, {sum(changed[5:])} changed, log P by up to {most:.1f}")

# %%
unit.claim("product", written, scored, rescored, 4)

# %% [markdown]
# Where one after it did not change, the token was certain already, to as many digits as are kept.
#
# That is the first answer. **No token can be chosen before the one to its left is known**, because until then there is no distribution to choose
# it from.
#
# ### The floor is the number of passes
#
# So there are as many passes as there are tokens, and each has a cost. What would help: a machine that computes infinitely fast, or one that
# reads memory infinitely fast?
# You have neither, but a prediction doesn't need the machine. The steps are the same; only the clock is another.

# %%
here = unit.device
fast_math, fast_memory = replace(here, flops=math.inf), replace(here, bandwidth=math.inf)
for lane, points in shown.points.items():
    steps = [step for step, _ in points if step.rows[0].phase != "prefill"]
    devices = here, fast_math, fast_memory
    clocks = [sum(unit.price(step).seconds(device) for step in steps) for device in devices]
    print(f"{lane}: {len(steps)} passes, predicted {clocks[0]:.3f} s")
    print(f"    with infinitely fast arithmetic {clocks[1]:.3f} s")
    print(f"    with infinitely fast memory     {clocks[2]:.3f} s")

# %% [markdown]
# Compare the three times of *score* with each other, then those of *write*. In this prediction scoring waits for arithmetic where fast arithmetic
# makes it shorter, and writing waits for memory where fast arithmetic buys it nothing: every one of its passes still has to fetch all weights. Hence
# the dotted line in the figure: **a floor that no arithmetic removes, set by the number of passes.** It is simple enough to be worked out by hand.
# (With infinitely fast memory both would take the same, for they do the same arithmetic.)

# %% exercise="01.3"

# %%
lowest = tp.learner_or_reference("01.3")
for device in (here, *unit.elsewhere):
    for bits in (8 * unit.number, 4):
        least = lowest(unit.config.n_params, bits, device.bandwidth, unit.length(PROMPT), n)
        print(f"{device.name}, weights of {bits:g} bits: {n} tokens in no less than {least:.3f} s")
unit.claim("floor", shown)

# %% [markdown]
# The lines for this machine lie a little below the clock above: you counted the weights alone, and a pass reads a little more. Those for weights
# of fewer bits are a promise that unit 06 will look into.
#
# ### Is it really memory?
#
# Or does it only look like it? A prediction proves nothing, whether it fits or misses by a factor. And the three clocks assume
# what they show: they take the longer of reading and multiplying. The proof is an intervention: change what is claimed to bind, and nothing else.
#
# So let in a **thief**: another program, on cores of its own, that reads memory as fast as it can and does nothing else. What it reads, the model
# can't. While a text is being written, the thief begins half way. (The model keeps to the other half of the cores from the beginning, so that
# it loses no core when the thief begins. Where no thief can work, with a single core or a graphics card, a sentence says so.)
#
# **How many times as long will a pass take beside the thief?**

# %%
slower = unit.predict("slower", None)  # a number in place of None

# %%
beside = []
for step, seconds in theft.slower(unit, PROMPT):
    beside.append(seconds)
    print(unit.decode([token for _, token, _ in step.rows[0].writes]), end="", flush=True)
half = len(beside) // 2
free, robbed = median(beside[1:half]), median(beside[half:])
print(f"\n\nalone {1e3 * free:.1f} ms a token, beside the thief {1e3 * robbed:.1f} ms: {robbed / free:.2f} times as long")
print(f"you said {slower:g}" if slower else "no prediction")

# %% [markdown]
# If the text slowed, was it because of memory? Two things are missing. How much slower did *reading* become? A pass that does nothing but wait
# for memory slows as much as reading does, no less. And what does a thief do that takes cores but no memory? It is the control: it reads the same
# few numbers over and over, which lie in the *processor's cache*, a small fast memory of each core.
#
# The figure measures all that in rounds: a pass and the reading speed, without a thief, with the one, with the other. ◆ is where the pass would lie
# if it slowed as reading does. It does so for two programs that run the same model: kernels that were written for a pass over a single token
# (**tiled**, those of all runs above), and those that PyTorch has for everything.

# %%
stolen = theft.steal(unit)

# %% [markdown]
# Look first whether the lines of *no thief* and of the control, *a thief takes only a core*, lie together; then how near *a thief takes bandwidth*
# comes to ◆. A pass that comes near is bound by bandwidth *here*: that is now a result, no longer a premise. Where the verdict for PyTorch's
# own kernels is another one, the same weights are fetched, but most of the pass is spent on something else than fetching them: starting
# operations, converting numbers, waiting for one another. So *this model is bound by memory* is never true of the model alone. It is true of a model,
# a program and a machine. Unit 04 takes that apart.
#
# ### Latency is linear in the length of the output
#
# Each pass costs nearly the same, so twice the text takes twice the time. Compare the first half of the text with the second:

# %%
pace = [seconds for step, seconds in shown.points["write"] if step.rows[0].phase == "decode"]
half = len(pace) // 2
for name, part in {"first": pace[:half], "second": pace[half:]}.items():
    print(f"median pass of the {name + ' half':11}  {f'{1e3 * median(part):6.2f} ms' if part else 'nothing written; run the race again'}")
unit.claim("linear", shown)

# %% [markdown]
# ### Two factors
#
# Why is inference slow? Two causes are named again and again (Pope et al. 2022, *Efficiently Scaling Transformer Inference*; Weng 2023,
# *Large Transformer Model Inference Optimization*):
# **low parallelism**, for tokens come one after another, and **memory traffic**, for weights and cached values have to be fetched for every
# one. The spine of this course is one equation, and they are
# its numerator and denominator: memory traffic makes a pass dear, low parallelism keeps few tokens per pass.
#
# $$\text{pace}\;\left[\frac{\text{seconds}}{\text{token}}\right] \;=\; \frac{\text{cost of a pass}}{\text{tokens kept per pass}}$$
#
# Everything ever done about slow decoding moves one of the two. A cache, fewer bits, a better kernel make a pass cheaper. Guessing ahead or
# writing several places at once keep more tokens
# from each. Batching shares a pass among readers.

# %%
unit.claim("two-factors", shown)

# %% [markdown]
# ### The loop, once more, as the library has it
#
# Your loop of exercise 01.1 owned everything: it called the model, fed it, and decided when to stop. All decoders of this course are written another
# way, as a **conversation**. A decoder says what it wants from the next pass, an *Ask*; whoever runs the model (the *driver*) runs the pass and
# answers with what came of it; and the decoder says what shall stay, a *Keep*: which of the fed tokens in the cache, and what is written. So the same
# decoder runs alone, in a batch with others, with or without a cache, and all the clever ones of later units differ in nothing but what they ask and
# what they keep.
#
# In Python that is a *generator*, a function with `yield` in it: `yield` hands something out, and the function stands still until it is sent an
# answer. A prompt of three tokens goes like this; every token has a position, counted from 0:
#
# ```
# decoder   Ask("decode", [12, 7, 30], 0)    feed these three; the first stands at position 0
# driver    out.tokens is [5]                the pass was run, and 5 was drawn (in this unit: was the likeliest)
# decoder   Keep(3, ((3, 5, True),))         all three stay in the cache; 5 is written at position 3, and stays
# decoder   Ask("decode", [5], 3)            feed what is new
# driver    out.tokens is [41]               … and so on, for as long as the driver wants more
# ```

# %% exercise="01.4"

# %% [markdown]
# With `tp.using` your decoder takes the place of the library's own, wherever that is used, until the block ends. Does the real model write the same
# through it?

# %%
conversation, lm = tp.learner_or_reference("01.4"), unit.lm or unit.plain
library = tp.generate(lm, unit.encode(PROMPT), max_new_tokens=16)
with tp.using(autoregressive=conversation) as used:
    mine = tp.generate(lm, unit.encode(PROMPT), max_new_tokens=16)
print(mine.text or f"tokens {mine.tokens}, of a model that was never trained: a dry lesson has no other")
print(f"{used}; {mine.passes} passes for {len(mine.tokens)} tokens")
print("the same tokens as the library's:", mine.tokens == library.tokens)

# %% [markdown]
# ## Break it
#
# ### Where it stops being linear
#
# *Latency is linear* can't be the whole truth. A pass also reads what the model remembers of every token before it, its keys and values. For
# a short text that is little beside the weights.
# When does it stop being little? Nothing has to be measured to know that, and for the last line nothing could be: this model's memory doesn't
# reach so far.

# %%
for context in (100, 1_000, unit.config.context, 100_000):
    cost = tp.cost(unit.config, [(context, 1)], unit.number)
    read = f"weights {cost.weight_bytes / 1e6:.0f} MB, keys and values {cost.kv_read / 1e6:6.0f} MB"
    print(f"after {context:7,} tokens: {read}, predicted {1e3 * cost.seconds(here):5.1f} ms a token")

# %% [markdown]
# So each token makes the next a little dearer: at first nobody would notice, in the end keys and values outweigh the weights. Unit 05 is about that.
#
# **For eight minutes, in class or alone.** This machine's ratio of writing to scoring is not the one that a graphics card would show (see the
# triangle in the figure).
# Which two numbers of a machine decide it? Use a text long enough that scoring waits for arithmetic (on the card of the figure: longer than the next
# cell says; for a shorter one scoring is one reading of the weights, and the ratio is just the number of tokens). Find the two numbers in the cell
# with the three clocks, then say what they would have to be for the two bars to be equally long.
# <details><summary>A hint</summary>Scoring takes as long as its arithmetic; writing as long as its reading. Write both as a quotient.</details>

# %%
for device in (here, *unit.elsewhere):
    only_reads = replace(device, flops=math.inf)
    texts = ((n, tp.cost(unit.config, [(0, n)], unit.number)) for n in range(1, 100_000))
    shortest = next(n for n, cost in texts if cost.seconds(device) > cost.seconds(only_reads))
    print(f"{device.name}: predicted to wait for arithmetic when it scores {shortest} tokens or more")

# %% [markdown]
# ### A clock that lies
#
# *This exercise can wait: nothing below needs it.*
#
# Everything in this unit hangs on a clock, and a clock is easily wrong. Two things go wrong again and again. A figure that is drawn between two
# passes takes time, too, which is no pass's. And a graphics card works off a queue: the program has only *said* what is to be done when it reads the
# clock, and has to wait until it is done. (PyTorch calls that *synchronise*.) The library's passes come as a stream, one Step after another, and
# asking for the next one runs a pass. Write the clock.

# %% exercise="01.5"

# %%
clock = tp.learner_or_reference("01.5")
with tp.using(timed=clock) as used:
    for step, seconds in tp.prepare(plain, unit.encode(PROMPT), max_new_tokens=4).timed():
        time.sleep(0.1)  # a reader that takes its time
        print(f"tokens fed: {step.rows[0].width}, pass: {1e3 * seconds:6.1f} ms")
print(used)

# %% [markdown]
# The reader slept after every pass. If the clock is right, none of that is in these times.
#
# ## The ledger
#
# Every unit ends with one row for each way of decoding seen so far. Today there is one: *autoregressive*,
# each token from a pass that knows all before it. The predicted pace stands under the best roof that was found just before and just after the race's
# text was written (◆ in the race: under that of the first cell).
# **MBU** is the share of the memory's bandwidth that the
# passes really used. It is left out, with the reason, where it would mean nothing. *Exact* asks whether the text is the one that plain
# decoding writes. This *is* plain decoding, so all that is asked today is that it writes the same twice: the race's text is compared with the one
# that was written before it.

# %%
run = shown.points["write"]
text = tp.canvas(step for step, _ in run)
exact = text == given[: len(text)]
wrote = any(step.rows[0].phase == "decode" for step, _ in run)
arguments = run, unit.price, unit.device, unit.cache, shown.band, exact, unit.where
ledger = unit.ledger(*([entry("autoregressive", *arguments)] if wrote else []))
ledger if wrote else print("nothing written, so there is no row; run the race again")

# %%
plane = live.watch(ledgers.Plane(ledger), {})

# %% [markdown]
# Up is a dearer pass, to the right are more tokens from each, and along a diagonal the pace is the same. Every later unit is a way to move
# that dot: down, or to the right.

# %%
unit.end()

# %% [markdown]
# ## What you know now
#
# - A text's probability is a product of conditionals, and no token can be chosen before the one to its left is known. A *given* text needs one pass,
# a *new* one as many as it has tokens.
# - Latency is nearly linear in output length, and its floor is the number of passes times what one has to read. Faster arithmetic doesn't remove it.
# - The same weights are read again for each token. Whether a pass waits for them is no matter of belief: take bandwidth away, and see. A pass that
# slows as much as reading does waits for memory, one that slows by less waits for other things too, and only if the control leaves it alone is either
# shown. So it is said of a model, a program and a machine together.
# - Pace is the cost of a pass divided by the tokens kept from it.
#
# Next, unit 02 opens the pass itself, and unit 03 asks what would be computed again and again without a cache.
