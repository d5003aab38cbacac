# %% [markdown]
# # 03 · The cache
#
# *Core unit. About 55 minutes, most of them for the five exercises; the longest, 03.4, can wait. You need unit 01; what is needed of unit 02 is
# said again.*
#
# Unit 01 said: each pass is fed one token. But a model computes the next token from *all* tokens before it. How can it, if it is fed one?
#
# Because it remembers what it computed about the others. Take the memory away, and every pass has to be fed the whole text again. **What is
# computed again and again, what does it cost, and what does it cost to keep it instead?**
#
# In this unit you see a real model write without its memory, count what is wasted, and build the memory yourself. At the end the model writes
# through the parts that you wrote in units 01 to 03.

# %%
import torch

import tokenpace as tp
from tokenpace import lesson
from tokenpace.exercises import find
from tokenpace.measure.ledger import entry
from tokenpace.show import cache, controls, ledgers, widths
from tokenpace.show.live import watch

unit = lesson.start("03")
print(unit)

# %% [markdown]
# ## Watch it
#
# The same prompt, the same model, the same rule (always the likeliest token). First without a cache, then with one. A **cache** is the model's
# memory of tokens that were passed before.

# %%
PROMPT = "Gravity is"
few = {"max_new_tokens": 6, "min_new_tokens": 6}
texts = {}
for name, decoder in {"fed_without": "uncached", "fed_with": "autoregressive"}.items():
    rows = [step.rows[0] for step, _ in unit.run(name, PROMPT, decoder=decoder, **few)]
    texts[name] = unit.decode([row.writes[0][1] for row in rows])
    print(f"{name.replace('_', ' '):11} a cache {' + '.join(str(row.width) for row in rows):21} tokens, wrote {texts[name]!r}")
print("the same text" if len(set(texts.values())) == 1 else "another text: two tokens were equally likely but for rounding")

# %% [markdown]
# Without a cache each pass is fed the prompt and everything written so far. With one, only the first pass is fed more than one token.
#
# ## Why anything may be kept
#
# A reminder of unit 02. In every layer each token is turned into three vectors: a **query** (what it is looking for), a **key** (by which others
# find it) and a **value** (what they get from it). A token's query is compared with the keys of all tokens before it, and it takes a mixture of
# their values. Nowhere else do tokens meet. (This is done several times side by side, by **heads**. Some query heads share one head of keys and
# values, a **KV head**.)
#
# So to write the next token, the model needs of each earlier token two things in each layer: its key and its value. Its query is needed no more; it
# has done its asking.
#
# And these two never change. Unit 01 swapped one token of a text: nothing before it moved. What a token is in a layer depends on the tokens up to
# it and on none after it. Write a hundred more, and every earlier key and value would be computed again to be the same. What is the same
# each time can be kept: that is the **KV cache**.
#
# How much is wasted without it? Count.

# %% exercise="03.1"

# %% [markdown]
# ## Predict
#
# A text is to be written after that prompt, once with a cache and once without. Your count (or the reference's) says how many tokens go through the
# model:

# %%
count = tp.learner_or_reference("03.1")
n, start = unit.size(quick=96, full=192), unit.length(PROMPT)
fed = {cached: count(start, n, cached) for cached in (True, False)}
print(f"{n} tokens after a prompt of {start}: {fed[True]:,} tokens passed with a cache, {fed[False]:,} without")
print(f"{fed[False] / fed[True]:.3g} times as many, and so as many times the arithmetic (without what attention itself does)")

# %% [markdown]
# **How many times as long will it take without a cache?** In time on this machine, not in tokens: it needn't be as many times as there are more of
# them. Think of what a pass over one token spends its time on.

# %%
guess = unit.predict("without", None)  # a number in place of None

# %% [markdown]
# ## Measure
#
# Left: what each token costs, as the text grows. Right: the same added up. Solid lines are measured, dashed ones with ◇ are predicted from the
# roof, as in unit 01: the longer of reading and multiplying. At the top of the right panel stand two times that a reader feels. **TTFT**, time to
# first token (*first token*), is the wait before anything appears: the pass over the prompt, the *prefill*. **TPOT**, time per output token (*then
# … each*), is the pace after that: the *decode steps*.

# %%
shown = cache.compare(unit, PROMPT, n, guess, seconds=unit.size(quick=30, full=120))

# %%
controls.button("Again", cache.compare, unit, PROMPT, n, guess, screen=shown.screen)

# %% [markdown]
# With a cache each token costs what the one before it cost, and the total is a straight line. Without one each token is dearer than the last, and
# the total bends upwards: it is the area under a rising line, a **parabola**. Twice the text costs up to four times as much.
#
# The prediction has the same shapes and lies below, for it is what the roof allows: nothing but reading, or nothing but multiplying, at full speed.
# Without a cache it lies further below; where that begins, the figure after next shows.
#
# Is it the same text? To the last bit it need not be: a pass over many tokens adds its numbers up in another order than a pass over one, and each sum
# is rounded to few digits. That moves log P of each token by a little, and where two tokens are nearly as likely, it may choose between them.

# %%
same, told = cache.texts(shown, unit.decode)
print(told)

# %% [markdown]
# Of a text of $N$ tokens, the matrix products take about $N^2/2$ times the parameters of the model instead of $N$ times (so your count found about
# half as many times as there are tokens); and attention, where each
# token looks at all before it, is done again for the whole text in each pass: $N^3$ instead of $N^2$. The claim below takes these powers from the
# shapes of the passes that were just measured, and looks whether the seconds followed.

# %%
unit.claim("quadratic", shown)

# %% [markdown]
# ## The surprising beginning
#
# Look at the left end of the left figure again. Without a cache the first few tokens cost little more than one another, though each pass is fed one
# token more; and the number of seconds did not grow as much as the number of tokens. Where a pass has few tokens, a token more seems to cost almost
# nothing.
#
# **How many times as long as a pass over one token does a pass over eight take?** It does eight times the arithmetic.

# %%
eight = unit.predict("eight", None)  # a number in place of None

# %% [markdown]
# In the next figure nothing is cached; each dot is a pass over so many tokens, repeated, and the bar behind it holds the middle half of the
# repeats.

# %%
flat = widths.widths(unit, eight, most=unit.size(quick=128, full=256))

# %% [markdown]
# Two things bind, and the slower one decides. **Reading**: every pass reads all weights once, whether for one token or for many (the flat line).
# **Multiplying**: every token is multiplied by all of them (the rising line). Where the two cross (the **crossing**; the sentence under the figure
# says at how many tokens), the machine has just as much to multiply as it
# can while it reads. Left of it, more tokens in a pass are predicted to be free; right of it, each has its price, and only there the waste of a
# text without a cache is felt.
#
# The measured curve is not so clean. It starts above the flat line, for a pass also launches hundreds of small operations; it may rise early, and
# in steps, where other loops take over for wider passes; and it rises more steeply where the products of these matrices don't reach the speed of
# the large ones that were probed. What the sentence under the figure says of eight tokens, half of this course lives on: a pass that checks several
# guesses (14) or serves several readers (08) costs far less than as many passes. (That reading binds at the left end is
# only predicted here; the thief of units 00 and 01 put it to the test.)
#
# On a large graphics card the crossing lies at hundreds of tokens (the line with triangles): there, if the prediction holds, a short text could be
# written without a cache, and hardly anybody would notice.
#
# ## What it costs to keep
#
# Keys and values need room, in every layer, for every token. In this model several query heads share one KV head, and only keys and values of KV
# heads are kept.

# %% exercise="03.2"

# %%
held, c = tp.learner_or_reference("03.2"), unit.config
shape = c.n_layers, c.n_heads, c.n_kv_heads, c.d_head
weights = c.n_params * unit.number
for tokens in (1, 100, 1_000, c.context):
    kept = held(*shape, tokens, unit.number)
    print(f"{tokens:5,} tokens: {kept / 1e6:8.3f} MB of keys and values, {kept / weights:6.1%} of the weights")

# %% [markdown]
# That is the trade: a little memory, and a little more to read in each pass, against passing the whole text again. It is also the first thing here
# that *grows* with a conversation; a server that talks to a hundred people has a hundred of them. Unit 05 is about that.
#
# ## Build it
#
# A cache has to answer two questions. *Which of the tokens that are kept may this one look at?* And *where in memory are they?*
#
# The first is answered by positions alone. Each cell of the cache knows which position it holds, or that it is empty (-1). Each token in the pass
# knows its own position. From these the model makes a table of which keys each query sees. There may be empty cells, and what another text left in
# one counts as empty; in what order the cells lie is of no importance.
#
# In the exercise `r` stands for a *rectangle*: some rows (texts side by side) that go through the pass together, each as wide as the widest. What a
# shorter row lacks is filled up with **padding**, at position -1. And some models let a token look back only so many tokens, its **window**; this one
# has none.

# %% exercise="03.3"

# %%
sees = tp.learner_or_reference("03.3")
store = tp.Cache(unit.config, tp.Slab(1, 8))
for positions in ([0, 1, 2, 3], [4, 5], [6]):
    (r,) = store.stage(torch.tensor([positions])).rectangles
    store.keep([len(positions)])
    for position, row in zip(positions, sees(r)[0].tolist()):
        print(f"token {position} sees", "".join("█" if seen else "·" for seen in row))

# %% [markdown]
# Three passes through a cache: a prompt of four tokens, then two, then one. The staircase is that of a single pass over all seven: the same tokens
# see the same tokens, in whatever pieces they come.
#
# The second question: where are they? The store is one long tensor with numbered **slots**, for each layer one of keys and one of values. Who is in
# which slot is decided by a class with a few methods. The simplest is a **slab**: each row has its own stretch of cells, one for each position.

# %% exercise="03.4"

# %% [markdown]
# Now the real cache stands on yours (or on the reference's): the same text is written through the library's slab and through this one.

# %%
place = tp.learner_or_reference("03.4")
tokens = {"library": tp.generate(unit.plain, unit.encode(PROMPT), max_new_tokens=12).tokens}
with tp.using(Slab=place, visible=sees) as used:
    tokens["this one"] = tp.generate(unit.plain, unit.encode(PROMPT), max_new_tokens=12).tokens
print(used)
print("the same tokens" if tokens["library"] == tokens["this one"] else "other tokens!")

# %% [markdown]
# The model ran on PyTorch's own kernels here, for the faster ones know the library's slab only. In a dry lesson it is a small model that was never
# trained.
#
# ## Break it
#
# Where does a cache not help?
#
# **Where only one token is wanted.** The first token needs one pass over the prompt, with or without. A cache does nothing for TTFT, and all for
# what comes after. To see it, separate the two.

# %% exercise="03.5"

# %% [markdown]
# Your function is now given the passes of four runs: the two that you have seen, and two with a prompt that says the same words over and over, so
# that the prompt is as long as the text was.

# %%
split, long = tp.learner_or_reference("03.5"), unit.encode(PROMPT) * 32
runs = {f"short prompt, {lane}": points for lane, points in shown.points.items()}
for lane, decoder in {"with a cache": "autoregressive", "without": "uncached"}.items():
    name = f"long_{lane.split()[0]}"
    runs[f"long prompt, {lane}"] = list(unit.run(name, long, decoder=decoder, max_new_tokens=8, min_new_tokens=8))
for name, run in runs.items():
    passes = [(seconds, len(step.rows[0].writes)) for step, seconds in run]
    ttft, tpot = split(passes) if len(passes) > 1 else (float("nan"), float("nan"))
    print(f"{name:26} TTFT {1e3 * ttft:6.1f} ms, TPOT {1e3 * tpot:6.1f} ms")

# %% [markdown]
# With the long prompt the cache leaves TTFT about where it is, and TPOT shows what it is for: without it every token costs about as much as the
# first. (Compare the long prompts. TTFT is a single pass, and a short one is easily off by half or more.)
#
# **Where a text is only scored.** Unit 01 scored a given text in a single pass. Whatever is kept, nobody comes back for it.
#
# **Where the pass is bound by something else.** Left of the crossing, passing a few tokens again is nearly free, as you have seen.
#
# **Where the beginning changes.** Keys and values depend on everything *before* them. Change the last token of a text, and all others stay good.
# Change the first, and not one of them does.
#
# **For eight minutes, in class or alone.** An assistant's prompt is the time of day ("It is 10:42."), then long instructions, then the user's
# question. The cache is kept from one question to the next. Somebody finds that it doesn't help at all. Why? What would you change, and by how much
# does the wait for the first token shrink? Say it in tokens first, then let the cell tell it in predicted time. Then think: what does the change
# cost?
# <details><summary>A hint</summary>Which token is the first that differs from the last question's prompt?
# From there on everything is passed again.</details>

# %%
clock, instructions, question = 8, 800, 30
first = tp.cost(unit.config, [(0, clock + instructions + question)], unit.number)
last = tp.cost(unit.config, [(instructions, clock + question)], unit.number)
for name, cost, passed in (("first", first, clock + instructions + question), ("after the instructions", last, clock + question)):
    print(f"clock {name}: {passed} tokens are passed, predicted {1e3 * cost.seconds(unit.device):.0f} ms to the first token")

# %% [markdown]
# ## The ledger
#
# A row for the uncached text now stands beside the cached one. Look at its bytes for each pass: hardly more than the other's, for it reads the same
# weights. What it has more of is arithmetic, and that no column of bytes shows. Its passes are unlike, so its pace is that of *this* text, a longer
# one would have a worse one, and no share of the bandwidth is claimed for it. *Exact* says yes if both texts are the same
# but for rounding, which is what the cell after the figure found.

# %%
here = unit.price, unit.device, unit.cache, shown.band
rows = []
if shown.view.progress() == 1:
    rows.append(entry("autoregressive", shown.points["with a cache"], *here, True, unit.where))
    rows.append(entry("uncached", shown.points["without"], *here, same, unit.where))
else:
    print("the run was cut short, so it adds no rows; run the figure again")
unit.ledger(*rows)

# %%
plane = watch(ledgers.Plane(unit.ledger(*rows)), {})

# %% [markdown]
# ## Through your own parts
#
# You have written the loop (01), the norm, the rotation, the attention, the feed-forward's middle and the draw (02), who sees whom and the slab (03).
# Here they take the library's place, all at once, and the model writes through them. What you have not done yet, or what isn't right yet, is the
# reference's.

# %%
ids = {"autoregressive": "01.4", "rms_norm": "02.1", "rope": "02.2", "attend": "02.3", "swiglu": "02.4", "draw": "02.5"}
ids |= {"visible": "03.3", "Slab": "03.4"}
parts = {name: tp.learner_or_reference(id) for name, id in ids.items()}

# %%
law = tp.Sampler(temperature=0.7, top_p=0.9)
spell = unit.decode if unit.mode != "dry" else str
print(PROMPT if unit.mode != "dry" else "a small model that was never trained, so numbers and not words:", end="")
with tp.using(**parts) as used:
    for step in tp.stream(unit.plain, unit.encode(PROMPT), sampler=law, seed=3, max_new_tokens=unit.size(quick=48, full=96) if unit.lm else 8):
        print(spell([token for _, token, _ in step.rows[0].writes]), end="", flush=True)
print()

# %%
own = [name for name, id in ids.items() if parts[name] is not find(id).reference]
print(f"{len(own)} of these {len(ids)} parts are yours{': ' * bool(own)}{', '.join(own)}")
print(used)
unit.end()

# %% [markdown]
# ## What you know now
#
# - Of each token passed, its keys and values never change again. Keeping them is the KV cache.
# - Without it, the tokens passed grow with the square of the text, and so does the time, once passes wait for arithmetic.
# - A pass over a few tokens costs far less than as many passes over one. So a short text without a cache isn't slow; and later units build in that
# room.
# - A cache does nothing for the first token, and it is worth only as much as the beginning of the text that stays the same.
# - It is memory that grows: two vectors for each token, KV head and layer.
#
# Next, unit 04 asks of each pass what it waits for, and proves it.
