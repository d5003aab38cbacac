# %% [markdown]
# # 01 · One token at a time
#
# *Core unit. About 40 minutes. You need nothing but this notebook; press* Shift+Enter *on one cell after another.*
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
from dataclasses import replace
from statistics import median

import tokenpace as tp
from tokenpace.decode.score import score
from tokenpace.measure.ledger import Ledger, entry
from tokenpace.show import controls, ledgers, lesson, race
from tokenpace.show.live import watch

unit = lesson.start("01")
print(unit)

# %% [markdown]
# ## Watch it
#
# The model is SmolLM2-135M-Instruct, a small one. Nothing below depends on its being small; the numbers do. It doesn't see text but *tokens*:
# pieces of words, each a number.
#
# A **pass** is one run through the model. Below, every line is one pass. In the first, the *prefill*, the model gets the whole prompt.
# After that, each pass is fed one token, the one that the pass before it made, and makes the next.
#
# What a pass computes is a probability for every token there is. This unit always takes the likeliest (that is called *greedy*), so every run
# writes the same text; unit 02 draws.

# %%
PROMPT = "Gravity is"
for step, seconds in unit.run("watch", PROMPT, max_new_tokens=12):
    row = step.rows[0]
    token = unit.decode([row.writes[0][1]])
    told = f"{row.phase:8} knew {row.context:2} tokens, was fed {row.width}, wrote {token!r:14}"
    print(told, f"{1e3 * seconds:6.1f} ms")

# %% [markdown]
# Look at the column *was fed*. Nothing in the model's arithmetic says that it must be one: the prefill took the whole prompt in a single pass.
# The loop is what says so. The input of a pass is the output of the pass before it.
#
# ## Predict
#
# Now take a text of some length and let the model go over it twice.
#
# - **Scoring.** The text is there already. In *one* pass over all of it the model says how likely each of its tokens was.
# - **Writing.** The same text has to be written: one pass for each token.
#
# Both do the same arithmetic, the same matrices times the same numbers. The GFLOP in the figure are calculated from the shapes of the matrices.
#
# **How many times as long as scoring does writing take, on this machine?** Write down a number before you go on. A wrong one teaches more than none.

# %%
guess = None  # a number in place of None

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
given = tp.canvas(first)

# %% [markdown]
# Then the race: the scoring bar, then the writing bar, each as it is measured.
# ◆ is *predicted*, from what a pass has to read and to multiply, and from how fast this machine reads and multiplies, as probed when this
# notebook started. The pale bar behind it is where ◆ would lie under the roof as it was just before and just after the run.
#
# Beneath it grows the text, and beside it the odometer: the weights that were read from memory to write it.

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
# When the text is *given*, everything to the right of each bar is known, so all factors can be computed side by side, in one pass. When it is
# being *written*, $x_2$ has to be chosen before
# the third factor means anything. Below is log P, the logarithm of the same product (a product of hundreds of small numbers is too small to print,
# the sum of their logarithms is not). It is added up once from as many passes as there are tokens, and once from two: the prompt's pass, which
# tells the first token's probability, and a single pass for all others.

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
# And do the factors really need *all* tokens before them? Swap a single early token of the text, keep all others, and score it again.

# %%
swapped = [*given[:4], given[4] + 1, *given[5:]]
other = unit.run("swapped", PROMPT, decoder=score(swapped), logprobs=True, **length)
rescored = [p for step, _ in other for row in step.rows for p in row.logprobs]
changed = [a != b for a, b in zip(scored, rescored)]
print(f"token 5 was {unit.decode([given[4]])!r}, is {unit.decode([swapped[4]])!r}")
print(f"of the {len(changed[:4])} probabilities before it, {sum(changed[:4])} changed")
most = max(abs(a - b) for a, b in zip(scored[5:], rescored[5:]))
print(f"of the {len(changed[5:])} after it, {sum(changed[5:])} changed, log P by up to {most:.1f}")

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
# Compare the two lines. In this prediction scoring waits for arithmetic where fast arithmetic makes it shorter, and writing waits for memory where
# fast arithmetic buys it nothing: every one of its passes still has to fetch all weights.
# Hence the dotted line in the figure: **a floor that no arithmetic removes, set
# by the number of passes.**
#
# Is it really memory, or does it only look like it? A prediction proves nothing, whether it fits or misses by a factor. And the three clocks assume
# what they show: they take the longer of reading and multiplying. The proof is an intervention: change what is claimed to bind, and nothing else.
# Unit 04 does so, by stealing bandwidth from a running model.
#
# ### Latency is linear in the length of the output
#
# Each pass costs nearly the same, so twice the text takes twice the time. Compare the first half of the text with the second:

# %%
pace = [seconds for step, seconds in shown.points["write"] if step.rows[0].phase == "decode"]
half = len(pace) // 2
for name, part in {"first": pace[:half], "second": pace[half:]}.items():
    print(f"median pass of the {name + ' half':11}  {f'{1e3 * median(part):6.2f} ms' if part else 'nothing written; run the race again'}")

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
#
# ## Break it
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
# ## The ledger
#
# Every unit ends with one row for each way of decoding seen so far. Today there is one: *autoregressive*,
# each token from a pass that knows all before it.
# **MBU** is the share of the memory's bandwidth that the
# passes really used. It is left out, with the reason, where it would mean nothing. *Exact* asks whether the text is the one that plain
# decoding writes, and this *is* plain decoding.

# %%
ledger = Ledger()
run = shown.points["write"]
wrote = any(step.rows[0].phase == "decode" for step, _ in run)
arguments = run, unit.price, unit.device, unit.cache, shown.band, True, unit.where
ledger.add(entry("autoregressive", *arguments)) if wrote else print("nothing written, so there is no row; run the race again")

# %%
plane = watch(ledgers.Plane(ledger), {})

# %% [markdown]
# Up is a dearer pass, to the right are more tokens from each, and along a diagonal the pace is the same. Every later unit is a way to move
# that dot: down, or to the right.
#
# ## What you know now
#
# - A text's probability is a product of conditionals, and no token can be chosen before the one to its left is known. A *given* text needs one pass,
# a *new* one as many as it has tokens.
# - Latency is nearly linear in output length, and its floor is the number of passes times what one has to read. Faster arithmetic doesn't remove it.
# - The same weights are read again for each token.
# - Pace is the cost of a pass divided by the tokens kept from it.
#
# Next, unit 02 opens the pass itself, and unit 03 asks what would be computed again and again without a cache.
