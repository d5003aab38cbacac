# %% [markdown]
# # 07 · The price of an output token
#
# *Not on the core path. About 50 minutes, more than half of them for the five exercises. You need unit 01, and of unit 03 that keys and values are
# kept.*
#
# Whoever sells a language model by the token has two prices on the list: one for **input tokens**, which you send, and one for **output tokens**,
# which it writes. The second is usually several times the first. It is the same model, and it does the same arithmetic for either.
# **Why do output tokens cost more than input tokens?**
#
# In this unit you work out what a token costs: in seconds, then, where your machine lets you, in joules, then in money. At the end you know what a
# price list tells about the machine behind it, and you check five bills.

# %%
from itertools import accumulate, pairwise
from math import nan

import tokenpace as tp
from tokenpace import lesson
from tokenpace.measure.ledger import entry
from tokenpace.measure.price import foretold
from tokenpace.show import controls, ledgers, power
from tokenpace.show.live import watch
from tokenpace.show.price import listed, prices

unit = lesson.start("07")
print(unit)

# %% [markdown]
# ## Watch it
#
# A prompt, and the beginning of what the model makes of it. A line is a pass, as in unit 01. The first one, the *prefill*, is fed the whole prompt;
# each pass after it is fed one token, and writes one.

# %%
PROMPT = (
    "A whale is no fish. It breathes air, it is warm, and it feeds its young with milk. Long ago its ancestors walked on land and hunted at the "
    "edge of rivers. Step by step they went into the water, and their legs became fins. Today the largest of all animals is"
)
few, passes = {"max_new_tokens": 12, "min_new_tokens": 12}, []
for step, seconds in unit.run("watch", PROMPT, **few):
    row = step.rows[0]
    passes.append((row.phase, row.width, len(row.writes), seconds))
    print(f"{row.phase:8} was fed {row.width:3} tokens, wrote {len(row.writes)}: {1e3 * seconds:6.1f} ms")

# %% [markdown]
# The prompt's pass takes longer than any other, and it is about many tokens. How long does *one* of them take?

# %% exercise="07.1"

# %%
each = tp.learner_or_reference("07.1")
given, written = each(passes)
print(f"an input token takes {1e3 * given:.2f} ms, an output token {1e3 * written:.2f} ms")

# %% [markdown]
# ## Predict
#
# That was a short run, and its first pass a single one. Now a prompt four times as long. In its pass every weight is read once, as in each pass of
# writing, but then it serves hundreds of tokens, and they have to be multiplied.
#
# **How many times as long as an input token will an output token take?** Whatever you have just seen: write a number.

# %%
guess = unit.predict("output", None)  # a number in place of None

# %% [markdown]
# ## Measure
#
# The figure shows one text: first its prompt is passed, then it is written. Above stands the **power** that the machine takes, in *watts*. A watt
# is a *joule* a second, and a **joule** is what energy is counted in. Below stand the seconds, the bytes and the joules of one token of either kind.
#
# Joules come from a *counter* that some processors and most graphics cards keep of themselves. It is read between the passes. Before that
# the machine is left alone for a second, which tells its **idle power**: what it takes when nothing runs. Many machines don't show their counter: a
# virtual one has none, a laptop often reserves it for its administrator, and some systems show nothing. Then the figure says *not readable here*,
# and why, and shows the rest.

# %%
n = unit.size(quick=32, full=96)
both = power.phases(unit, PROMPT * 4, n, guess)

# %%
controls.button("Again", power.phases, unit, PROMPT * 4, n, guess, screen=both.screen)

# %% [markdown]
# Look at the bytes first. For the prompt's pass the weights were read once, and that reading is shared by all its tokens. For an output token they
# were read for it alone. So an output token would be dear because it travels alone, not because there is more to compute. That can be put to the
# test: give it company. You will, below.
#
# The ratio of the seconds is smaller than that of the bytes, for the prompt's tokens wait for something else: not for reading, but for multiplying.
# (That is what the roof predicts, ◆; unit 01 put the passes of writing to the test, with its thief.)
#
# ### What a counter shows
#
# A counter of energy is a number that only goes up, until it is full: then it starts at 0 again. A processor that works hard fills its own in about
# an hour, some in minutes. And what it counts in a span of time has the machine's idle power in it. Make joules of what it shows.

# %% exercise="07.2"

# %% [markdown]
# Here is what a counter showed during the run above: one that was nearly full when it began, so that it starts again on the way. Where joules
# can't be read, the watts are made up; that is enough to see whether your count comes out right.

# %%
count, made_up, rest, run = tp.learner_or_reference("07.2"), 40.0, unit.idle or 10.0, both.points["answer"]
taken = list(accumulate((getattr(one, "joules", made_up * one.seconds) for one in run), initial=0.0))
size = int(1e6 * taken[-1]) + 1
readings = [int(0.9 * size + 1e6 * energy) % size for energy in taken]
total, own = count(readings, size, rest, sum(one.seconds for one in run))
print("read here:" if unit.counter.readable else f"made up, as if it were {made_up:g} W, {rest:g} W of them idle:", end=" ")
print(f"{total:.2f} J in all, {own:.2f} J above idle; new starts of the counter: {sum(b < a for a, b in pairwise(readings))}")
print("as much as was taken:", abs(total - taken[-1]) < 1e-3)

# %% [markdown]
# Which of the two is *the* energy of a token? Both are, for other questions. A server stands there anyway and is paid for idle hours, too, so its
# bill has all of it; what one more token takes of a machine that runs is what is above idle.
#
# ### Seconds first, then joules
#
# A machine costs by the hour, whatever it does. So a token costs the time that it keeps the machine busy, and the energy that goes through
# meanwhile. What an hour and a kilowatt-hour cost you have to say: the numbers in the cell after the exercise are made up.

# %% exercise="07.3"

# %%
cost, RATE, KWH = tp.learner_or_reference("07.3"), 1.00, 0.30  # an hour of this machine, a kilowatt-hour: put in yours, in any currency
for kind, side in both.view.sides().items():
    time, energy = cost(1e6 * (side.seconds or nan), 0.0, RATE, KWH), cost(0.0, 1e6 * (side.joules or 0.0), RATE, KWH)
    electricity = f"{energy:.4f}" if side.joules else "not readable here"
    print(f"a million {kind:6} tokens: {time:7.3f} for the machine, {electricity} for electricity")
print(f"with these rates electricity costs more than the machine if it takes more than {1000 * RATE / KWH:,.0f} W")

# %% [markdown]
# Whatever an hour costs, the ratio stays: an output token costs as many times an input token as it takes times the seconds. Electricity, where it can
# be read, has a ratio of its own.
#
# ## Sharing a pass
#
# An output token travels alone. But it needn't. A server has many readers, and their texts can go through the model side by side: a pass reads the
# weights once and writes a token for each of them. How many texts share a pass is called the **batch**. (How a server gets them together is unit
# 08's and 09's subject.) The prompts gain little by it: each of them shares its pass among its own tokens already.
#
# **With eight texts in each pass, how many input tokens does an output token cost?**

# %%
eight = unit.predict("eight", None)  # a number in place of None

# %% [markdown]
# If you like, look up a price list, of any seller and any model, and put in its two prices. They are for the same number of tokens, mostly a
# million. (There is none here, for it would soon be wrong.)

# %%
chosen = listed(None, None)  # the price of input tokens, the price of output tokens

# %% [markdown]
# Left are the seconds of a token of either kind, right their ratio. What is predicted for here and for a graphics card comes from what a pass
# has to read and to multiply, as in all units. Only this time it is no bound: both kinds of token take longer than predicted, so the ratio of the two
# may come out on either side.

# %%
batches = unit.size(quick=(1, 2, 4, 8, 16), full=(1, 2, 4, 8, 16, 32))
shown = prices(unit, PROMPT, eight, chosen, batches, seconds=unit.size(quick=30, full=90))

# %%
controls.button("Again", prices, unit, PROMPT, eight, chosen, batches, screen=shown.screen)

# %%
unit.claim("price", shown)

# %% [markdown]
# Company is what it lacked: *several times* is true of one reader, and becomes less with each that joins. (Pope et al. 2022, *Efficiently Scaling
# Transformer Inference*, figure 1, show the same for a model of hundreds of billions of weights, as cost against latency.) What keeps the ratio
# from falling for ever?
#
# First, arithmetic. Every output token is multiplied by all weights, just as an input token is, and by the head's, too, which of a prompt only the
# last token needs. Where multiplying takes longer than reading, company helps no more. (The measured curve needn't be smooth: more rows may be the
# work of other loops, with a speed of their own.)
#
# Second, and this model's short texts hardly show it: the weights are shared, but **each text has its own keys and values**, and these are read for
# it alone. Compute what that means.

# %% exercise="07.4"

# %% [markdown]
# Now ask about a large model on a large card, which neither you nor the recording has. Down: how long the texts are. Across: how many share a pass.
# A dash means that their keys and values don't fit into the card's memory beside the weights.

# %%
ratio, model, card = tp.learner_or_reference("07.4"), tp.config.preset("llama-3.1-8b"), tp.device("NVIDIA H100 SXM")
weights, flop, speed = 2 * model.n_params, 2 * model.n_params, (card.bandwidth, card.flops["bfloat16"])
sharing = (1, 8, 32, 128, 512)
print("8 billion weights, predicted; texts a pass:", "".join(f"{batch:8}" for batch in sharing))
for context in (500, 2_000, 8_000, 32_000):
    kv = 2 * model.kv_numbers * context
    fits = [weights + batch * kv < card.memory for batch in sharing]
    told = [f"{ratio(weights, kv, flop, *speed, batch):.3g} ×" if fit else "–" for batch, fit in zip(sharing, fits)]
    print(f"  after {context:6,} tokens of context", " " * 14, "".join(f"{text:>8}" for text in told))

# %% [markdown]
# With short texts and many readers an output token comes down to a few input tokens. With long texts it stays dear, for two reasons at once: their
# keys and values are read again for each token, and so few of them fit into memory that few can share a pass. So a seller's two prices
# are a bet on how long your texts are, and on how many others write at the same moment.
#
# Which batch would make the list that you chose a fair one, if that model on that card stood behind it?

# %%
for context in (500, 2_000, 8_000):
    kv = 2 * model.kv_numbers * context
    fair = (batch for batch in range(1, 513) if ratio(weights, kv, flop, *speed, batch) <= (chosen or 0) and weights + batch * kv < card.memory)
    told = next((f"from {batch} texts a pass on" for batch in fair), "with no batch that fits")
    print(f"{context:5,} tokens of context: {f'{chosen:.3g} times is fair {told}' if chosen else 'no price list chosen'}")

# %% [markdown]
# Take that as an exercise in reasoning and not as a fact about a seller. Their model, their card and their bits are others, prices are made to
# compete, and an idle hour has to be paid by somebody, too.
#
# ## Break it
#
# Where is an output token *not* several times as dear?
#
# **With many readers**: the right end of the figure.
#
# **With a short prompt.** An input token is cheap because it shares its pass with the rest of its prompt. What if there is no rest?

# %%
for length in (1, 4, 16, 64, 256):
    told = foretold(lambda rows: tp.cost(unit.config, rows, unit.number), unit.device, length, length, 1)
    print(f"one text after a prompt of {length:3}: an output token is predicted to take {told:.3g} times as long as an input token")

# %% [markdown]
# **With guesses** of which several are kept (unit 14): an output token has company again, from its own text. **With a prompt that is in the
# cache already** (unit 11) it is the other way round: its input tokens take nothing, whatever the list says.
#
# So the same tokens can take very different times. Find the bill that forgot it.

# %% exercise="07.5"

# %% [markdown]
# Five bills of this machine, by the seconds that were measured and the rates from above. Eve had her passes for herself, and is asked for what Dan is
# asked for, who shared his.

# %%
fed, passed = (side.seconds or nan for side in shown.view.sides(1).values())
tasks = [("Ada", 4_000, 0, 200, 1), ("Ben", 500, 0, 2_000, 1), ("Cleo", 4_000, 3_500, 200, 1), ("Dan", 500, 0, 3_000, 8), ("Eve", 500, 0, 3_000, 1)]
due = [cost((given - cached) * fed + written / texts * passed, 0.0, RATE, KWH) for _, given, cached, written, texts in tasks]
due[-1] = due[-2]
print("the wrong bill is that of", tp.learner_or_reference("07.5")([(*task, asked) for task, asked in zip(tasks, due)], RATE, fed, passed))

# %% [markdown]
# **For eight minutes, in class or alone.** Two customers of this machine, each alone on it. One sends long texts and wants a short summary; the
# other sends a short prompt and wants a long story. The seller would like a single price for all tokens, such that both customers together pay what
# they cost together. Who pays for whom, and how much? Say it first; then let the cell tell. What becomes of it if eight texts share each pass?
# <details><summary>A hint</summary>Both have the same number of tokens, so with a single price both pay the same.</details>

# %%
customers = {"summary": (2_000, 100), "story": (100, 2_000)}
for texts in (1, 8):
    each = {kind: side.seconds or nan for kind, side in shown.view.sides(texts).items()}
    takes = {who: sent * each["input"] + got * each["output"] for who, (sent, got) in customers.items()}
    half = sum(takes.values()) / 2
    for who, seconds in takes.items():
        told = f"the {who:7} takes {seconds:6.2f} s and pays for {half:6.2f} s"
        print(f"{texts} text{'s' * (texts > 1)} a pass: {told}, {half / seconds:.2f} times its cost")

# %% [markdown]
# ## The ledger
#
# Eight texts a pass is a row of its own: more tokens are kept from each pass, a pass costs a little more. *Exact* asks whether
# the first text is the one that it is alone. *Joules/token* is what the counter counted in the passes of writing, idle power included.

# %%
here, rows = (unit.price, unit.device, unit.cache, shown.band), []
if shown.view.progress() == 1:
    alone, together = (shown.points[str(texts)] for texts in (1, 8))
    first, same = (tp.canvas(step for step, _ in run) for run in (alone, together))
    rows.append(entry("autoregressive", alone, *here, True, unit.where))
    rows.append(entry("8 texts a pass", together, *here, first == same, unit.where))
else:
    print("the run was cut short, so it adds no rows; run the figure again")
unit.ledger(*rows)

# %%
plane = watch(ledgers.Plane(unit.ledger(*rows)), {})

# %% [markdown]
# The dot went to the right: that is what sharing does. The pace in the ledger is that of all eight together; each of the readers waits for whole
# passes, and those became longer. Unit 08 is about that bargain.

# %%
unit.end()

# %% [markdown]
# ## What you know now
#
# - An input token shares the reading of the weights with its whole prompt, an output token has a pass to itself. That, and no arithmetic, is why
# it costs several times as much.
# - A bill is seconds times a rate, and joules times another. Where joules can be read, they are a counter's, which starts again when it is full, and
# part of them is what the idle machine takes.
# - Texts that share their passes bring the ratio down, to where multiplying binds or to what each text reads for itself: its keys and values.
# - So two prices are fair for one mixture of lengths and company. Who has another mixture pays for somebody else, or is paid for.
#
# Next, unit 08 lets texts of unequal lengths share a pass, and asks who pays for the room that stays empty.
