# %% [markdown]
# # 00 · The instrument
#
# *Core unit. About 55 minutes, most of it for the five exercises. You need nothing but this notebook; press* Shift+Enter *on one cell after another.*
#
# This course asks why a language model writes one token at a time, and what can be done about it. The answers are numbers, and the numbers are those
# of *your* machine. So the machine comes first. **What can it do?**
#
# You need some Python, and to know what a matrix times a vector is. You needn't know how a language model works: for this unit it is a program that
# reads a text and writes the next piece of it. Nor need you follow the code of every cell: what you are to write is in the exercises, and what a cell
# shows is told around it. A few words, though, come back all the time:
#
# - **token**: a piece of a word. The model reads and writes nothing else.
# - **weights**: the numbers that a model consists of. It was trained once, and since then they don't change.
# - **pass**: one run through the model. Tokens go in, the next token comes out.
# - **prompt**: the text that the model is given to go on from.
# - **FLOP**: one addition or multiplication of two numbers. **GB**: a billion bytes, and a byte is 8 bits. **bfloat16** is a number in two bytes,
# float32 one in four.
#
# The first cell loads the model and takes a first look at the machine. At its first run that takes half a minute, for the fast kernels are compiled.
# (A **kernel** is the piece of a program that does one kind of operation, such as a matrix times a vector.)

# %%
import time

import tokenpace as tp
from tokenpace import lesson
from tokenpace.measure.ledger import entry
from tokenpace.measure.reading import reader
from tokenpace.show import controls, ledgers, live, odometer, roofline, theft

unit = lesson.start("00")
print(f"{unit.where}; {lesson.estimate('00')} to read and do")

# %% [markdown]
# ## Watch it write
#
# The model is SmolLM2-135M-Instruct, a small one. Below it answers a few questions, one after another. What it says is often wrong; how fast it says
# it is what this course is about. Read along, and keep an eye on the number beside the text.

# %%
watched = odometer.odometer(unit, unit.size(quick=6, full=20))

# %% [markdown]
# That number is an *odometer*: how much of the model was read from memory to write this text. It grows fast for a few lines about the sky. Where does
# it come from?
#
# ## What are those GB?
#
# A model of this kind computes a token from *all* of its weights. They lie in memory; the processor keeps only a little of what it read last, in its
# *caches*, small fast memories beside the cores. So for every pass all weights have to be fetched, and each pass makes one token. The odometer is a
# product: **bytes of the weights × passes**.

# %% exercise="00.1"

# %%
gb, model = tp.learner_or_reference("00.1"), unit.config
each, passes = gb(model.n_params, 8 * unit.number), watched.view.passes
print(f"{model.n_params:,} weights of {8 * unit.number:g} bits: {each:.4f} GB a pass, {passes * each:.2f} GB in {passes} passes")
print(f"the odometer says {watched.view.read / 1e9:.2f} GB")
for billions, bits in ((8, 16), (8, 4.5), (70, 4.5)):
    print(f"a model of {billions} billion weights, {bits:g} bits each: {gb(billions * 1e9, bits):6.1f} GB a pass")

# %% [markdown]
# (The odometer is worked out from the shapes of the model's matrices, not measured. That the bytes really come from memory, and that the model waits
# for them, is not shown yet. It will be put to the test below.)
#
# ## Predict
#
# You have seen how many tokens a second it wrote. Perhaps that is all this machine can do; perhaps it is a tenth of it. Two guesses, before you go
# on. A wrong one teaches more than none. They are kept in a file in your user's data folder, and nowhere else.
#
# **How many GB a second does this machine read from its memory, if it does nothing but read?**
# **How many tokens a second could this model write here at most?**

# %%
guess = unit.predict("read", None)  # GB a second: a number in place of None
most = unit.predict("write", None)  # tokens a second

# %% [markdown]
# ## Measure
#
# Now the machine shows what it can do. Three things are probed, again and again, and each sample is drawn as it comes:
#
# - **Reading**: a loop that does nothing but read, over buffers (pieces of memory) from tiny to larger than any cache.
# - **Multiplying**: large matrix times large matrix, in several kinds of number.
# - **Launching**: operations that have next to nothing to do. What is left is what it costs to start one.
#
# Then come products of a matrix with one vector, small matrices first. They are nearly all that a pass over a single token does. What the machine can
# do at best, as probed here, is called its **roof**. If it moves while something is measured, another program is at work, and the figure gives no
# verdict.

# %%
shown = roofline.roofline(unit, guess and guess * 1e9)

# %% [markdown]
# **Left: reading.** Each axis goes up by factors of ten. A small buffer stays in the caches (the dotted lines are their sizes) and is read fast. To
# the right of the last line it has to come from memory, and the curve falls to the speed that matters for a model: it is much larger than any cache.
#
# **Right: the roofline.** Up is how many FLOP a second are done, to the right how many are done with each byte that was read: the **intensity**.
# Whoever does few FLOP with each byte can't do more of them than the bytes allow: that is the slope. Whoever does many meets the flat top: that is
# all the arithmetic there is. Every program lies under this roof, also those of tomorrow. The picture is that of Williams, Waterman and Patterson
# 2009, *Roofline: An Insightful Visual Performance Model*. The dots are the products with one vector. They make two FLOP of each weight, and all
# weights here have equally many bytes, so they all stand at the same intensity, left of the bend. The lowest are the smallest matrices: those spend
# their time on something else, and the panel below shows on what. (Some dots stand above the slope: their matrices come from a cache, which the slope
# knows nothing of, or their kernel reads memory a little faster than the loop that probed it.)
#
# **Below: the same products by size.** Each line is a time that can't be beaten: launching an operation, reading the matrix from memory, multiplying
# it. The highest of the three lines counts. Small products lie on *launch* or above; middle ones may lie *under* the line of memory, for they come
# from a cache; large ones lie on it, or above it. There are two kinds of dots: `F.linear` is what PyTorch has for any product, the *tiled kernel* was
# written for a single vector and is what the model above ran on.
#
# Run it once more with the button, if you like. Two runs are never quite alike: other programs use the same memory.

# %%
controls.button("Probe again", roofline.roofline, unit, guess and guess * 1e9, screen=shown.screen)

# %% [markdown]
# The course rests on a list of **claims**, and every unit puts some of them to your machine: each holds, holds if something else is given, doesn't
# hold here, or couldn't be told. `tp.claims()` shows all of them. The first one is about the left panel.

# %%
unit.claim("hierarchy", shown.view.roof)

# %% [markdown]
# ## Build the instrument
#
# A speed that somebody else measured is a rumour. Measure it yourself. It's a few lines, and nearly everything that can go wrong does: a buffer that
# is still in the cache, a first read that finds nothing prepared, another program that takes its turn. The check runs your function on made-up
# machines, whose clocks move only when they read.

# %% exercise="00.2"

# %% [markdown]
# And now on this machine, with a real buffer and a real clock. It should come near to what the probe found, though seldom equal: it is another
# minute.

# %%
measure = tp.learner_or_reference("00.2")
probed = shown.view.ceilings().get("bandwidth", unit.device.bandwidth) / 1e9
if unit.mode == "dry":
    print(f"a dry lesson measures nothing; the probe found {probed:.1f} GB/s")
else:
    print(f"it finds {measure(reader(unit.lm.device), time.perf_counter, unit.cache):.1f} GB/s; the probe found {probed:.1f} GB/s")

# %% [markdown]
# ## Explain: three ceilings
#
# A pass has to do three things: launch its operations, read its weights, multiply. Each has a ceiling, and each ceiling gives a time. At best all
# three go on at once. Then the pass takes as long as the longest of them, and that one is said to **bind**.

# %% exercise="00.3"

# %% [markdown]
# With this function you can answer the second question. (A pass launches at least one operation for each matrix of the model.)

# %%
least, known = tp.learner_or_reference("00.3"), shown.view.ceilings()
roof = {"bandwidth": 1e9 * probed, "flops": known.get(unit.dtype, unit.device.flops), "launch": known.get("launch", 0)}
matrices = sum(len(shape) == 2 for shape in model.tensors.values())
seconds = least(model.n_params, 8 * unit.number, 1, matrices, roof)
print(f"a pass over one token takes {1e3 * seconds:.2f} ms at least: at most {1 / seconds:.0f} tokens a second")
print(f"you said {most:g}" if most else "no prediction")
alike = [took for step, took in watched.points["write"] if step.rows[0].phase == "decode"]
if alike:
    rate = watched.view.tokens / watched.view.seconds
    print(live.verdict(watched.band, f"It wrote {rate:.3g} a second, {rate * seconds:.0%} of that.", alike))

# %% [markdown]
# This is a bound and no forecast. It says what can't be beaten as long as all weights come from memory, not what will be reached: a pass also
# computes with what it remembers of the text, waits for its threads, and seldom reads at full speed.
#
# ### The ridge
#
# In the roofline the slope meets the flat top at the **ridge**. Left of it a program waits for bytes, right of it for arithmetic. A pass over one
# token is far to the left. But a pass needn't have one token: it may have all tokens of a prompt, or one of each of several readers. The weights are
# read once for all of them. So tokens that share a pass move it to the right. How many does it take to get to the ridge? (The figure gives the ridge
# in FLOP per byte; the exercise asks for it in tokens.)

# %% exercise="00.4"

# %%
ridge = tp.learner_or_reference("00.4")
print(f"here: {ridge(8 * unit.number, roof['bandwidth'], roof['flops']):.1f} tokens")
for device in unit.elsewhere:
    print(f"{device.name}, by its data sheet: {ridge(8 * unit.number, device.bandwidth, device.flops):.0f} tokens")
for tokens in (1, 4, 16, 64, 256):
    took = least(model.n_params, 8 * unit.number, tokens, matrices, roof)
    print(f"{tokens:4} tokens in a pass: {1e3 * took:8.2f} ms at least, {1e3 * took / tokens:6.2f} ms for each")

# %% [markdown]
# Up to the ridge a further token costs nothing, in this calculation. Most of this course lives on that: whatever puts more *useful* tokens into a
# pass is nearly free until then. The trouble is that the next token isn't known before the pass is over. That is unit 01.
#
# ## Is it memory? Take some away and see
#
# So far it is only arithmetic that says that writing waits for memory. It *assumes* so: the three ceilings are all it knows. A pass that comes near
# the bound is a hint. A pass that stays far below may wait for something else altogether.
#
# The proof is an intervention: change what is claimed to bind, and nothing else. A **thief** is another program on cores of its own that reads memory
# as fast as it can. What it reads, the model can't. If the pass waits for memory, it has to slow, and by as much as reading slows. There is a second
# thief that takes a core just as well, but reads only what fits into that core's own cache. It is the control: should the pass slow with *it*, then
# the first experiment showed nothing about memory.
#
# It is done twice, with two programs that run the same model: the tiled kernels, and PyTorch's own. **Which of the two will slow more?** ◆ is where a
# pass would lie if it slowed just as reading does, and the panels below show how fast memory was read in the same round. (Where no thief can work,
# with a single core or a graphics card, a sentence says so.)

# %%
stolen = theft.steal(unit)

# %% [markdown]
# Look first whether the control lies where the passes without a thief lie. Then look how near the passes beside the thief of bandwidth come to ◆.
#
# If the two programs differ, the same weights were read by both, so it can't be the model that decides. Go back to the roofline, to the largest
# matrix: the sentence under it says at what share of the speed of memory each kernel reads, if the machine was quiet. A kernel that reads slower than
# memory gives waits for something else as well (for its own arithmetic with a single vector, for threads to wake up, for operations to start), and a
# thief of what it doesn't use up can't hurt it as much. **That a model is bound by bandwidth is never true of the model alone**, but of a model, a
# program and a machine together.
#
# What may be concluded, and when nothing may, is worth being strict about.

# %% exercise="00.5"

# %% [markdown]
# The figure's verdict asks one function, and now it is this one. (It also looks at how much the rounds differ, which is why it may still decline.)

# %%
with tp.using(bound=tp.learner_or_reference("00.5")) as used:
    verdicts = stolen.view.verdicts
for lane, verdict in verdicts.items():
    print(f"{theft.NAMES[lane]}: {verdict.word}{': ' * bool(verdict.why)}{verdict.why}")
print(used)

# %%
unit.claim("bandwidth", stolen)

# %% [markdown]
# ## Break it
#
# Where does the picture of a model that waits for its weights stop being right? Keep the layers, and with them the number of matrices, and make the
# model narrower and narrower. (The largest is as large as models that people rent by the token, the smallest is a toy.)

# %%
for weights in (8e9, 1e9, 1e8, 1e7, 1e6, 1e5):
    size = gb(weights, 8 * unit.number) * 1e9
    reading, launching = size / roof["bandwidth"], matrices * roof["launch"]
    told = "reading binds" if reading > launching else "launching binds"
    told += "; it fits the cache, so reading is faster still" if size < unit.cache else ""
    print(f"{weights:13,.0f} weights: reading {1e3 * reading:8.3f} ms, launching {1e3 * launching:.3f} ms; {told}")

# %% [markdown]
# For the small ones it isn't memory: they fit into the cache and are read at another speed, the one on the left of the panel *Reading*, and in the
# end launching takes longer than reading, so that a smaller model isn't any faster. Whoever tries out an idea on a toy model sees the ceilings of the
# toy. That is why this course measures on a real one, and why it declines to speak of a share of memory's speed where the weights might come from a
# cache.
#
# **For eight minutes, in class or alone.** Somebody offers you one of three: a processor that multiplies twice as fast, a memory that is read twice
# as fast, or the same model in weights of half as many bits. Which do you take if one person reads along? And if 64 people share every pass? Write
# down both answers, then run the cell. After that find the number of readers from which you would choose otherwise.
# <details><summary>A hint</summary>You have written the function that tells where that is.</details>

# %%
bits, readers = 8 * unit.number, (1, 64)
offers = {
    "as it is": (bits, roof),
    "twice the arithmetic": (bits, roof | {"flops": 2 * roof["flops"]}),
    "twice the bandwidth": (bits, roof | {"bandwidth": 2 * roof["bandwidth"]}),
    "half the bits": (bits / 2, roof),
}
for name, (width, better) in offers.items():
    rates = [n / least(model.n_params, width, n, matrices, better) for n in readers]
    print(f"{name:21}" + "".join(f"  {n:3} readers: {rate:7,.0f} tokens/s at most" for n, rate in zip(readers, rates)))

# %% [markdown]
# ## The ledger
#
# Every unit ends with one row for each way of **decoding** (writing a text, token by token) seen so far. Today there is one: *autoregressive*, each
# token from a pass that knows all before it. The passes over the prompts are left out, so there are fewer than the odometer counted. **Pace** is
# seconds per token; the predicted one is the bound again, under the best roof that was found just before and just after this text was written.
# **MBU** is the share of memory's bandwidth that the passes really used; it is left out, with the reason, where it would mean nothing. *Exact* asks
# whether the text is that of plain decoding. Nothing here tests it; unit 01 does.

# %%
run = watched.points["write"]
wrote = any(step.rows[0].phase == "decode" for step, _ in run)
arguments = run, unit.price, unit.device, unit.cache, watched.band, None, unit.where
ledger = unit.ledger(*([entry("autoregressive", *arguments)] if wrote else []))
ledger if wrote else print("nothing written, so there is no row; run the odometer again")

# %%
plane = live.watch(ledgers.Plane(ledger), {})

# %% [markdown]
# Up is a dearer pass, to the right are more tokens from each that stay in the text, and along a diagonal the pace is the same. Every later unit is a
# way to move that dot.

# %%
unit.end()

# %% [markdown]
# ## What you know now
#
# - A pass reads all weights, so what is read for a text is the weights' bytes times the passes.
# - A machine has three ceilings: launching, bandwidth, compute. The one that takes longest binds, and gives a pace that can't be beaten.
# - Tokens that share a pass share its reading. Up to the ridge they are nearly free.
# - That something is bound by memory is shown by taking memory away, with a control beside it. It is true of a model, a program and a machine.
#
# Next, unit 01 asks why the tokens of an answer can't simply share a pass.
