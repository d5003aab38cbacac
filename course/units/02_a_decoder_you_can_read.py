# %% [markdown]
# # 02 · A decoder you can read
#
# *Core unit. About an hour, most of it for the six exercises; the last of them, 02.6, can wait. You need unit 01, Python, and a little PyTorch.*
#
# So far a pass was a black box: tokens go in, a number for every token of the vocabulary comes out. **What is in a pass?**
#
# Less than you may think. A model of this kind is a few hundred lines of Python, and what decides is five small functions, each shorter than the
# paragraph that explains it. In this unit you write them. At the end the real model, all 135 million weights of it, runs through yours.
#
# Then you see where the milliseconds of a pass go, measured part by part, and what becomes of its result: how a *law*, a probability for every
# token, becomes one token.

# %%
from dataclasses import replace

import torch

import tokenpace as tp
from tokenpace import lesson
from tokenpace.measure.ledger import entry
from tokenpace.measure.roof import band
from tokenpace.model import attention
from tokenpace.show import anatomy, controls, distribution, ledgers
from tokenpace.show.live import watch

unit = lesson.start("02")
print(unit)

# %% [markdown]
# ## Watch it
#
# ### What goes in: tokens
#
# The model never sees letters. A **tokenizer** cuts the text into pieces out of a fixed list, the **vocabulary**, and gives each its number. Frequent
# words are one piece, with the space before them; a rare word is several. (A dry lesson has no model and no tokenizer; there, every byte is a token.)

# %%
PROMPT = "Gravity is"
piece = (lambda token: unit.decode([token])) if unit.lm else chr
for text in (PROMPT, "Antigravitationally speaking, 1729 is"):
    print(" | ".join(f"{piece(token)!r} {token}" for token in unit.encode(text)))

# %% [markdown]
# ### What happens to them: the stream
#
# Each token's number picks a row of a table, the **embedding**: a vector that stands for the token. From there on the pass carries one vector for
# each token through the model, the **residual stream**. A *layer* never replaces it. It reads the stream, computes something, and **adds** that to
# it, twice:
#
# - **attention** fetches something from the vectors of earlier tokens (the only place where tokens meet);
# - the **feed-forward** part (*mlp*) works on each token's vector alone.
#
# After the last layer the vector of the last token is compared with the row of every token in a table (here the embedding once more): these products
# are the **logits** that you know from unit 01. Nothing keeps us from comparing sooner. What would the model say if it stopped after fewer layers?

# %%
model, ids = unit.plain.model, torch.tensor([unit.encode(PROMPT)])
c = model.config
print(f"{ids.shape[1]} tokens, each a vector of {c.d_model} numbers, through {c.n_layers} layers")
for layers in range(0, c.n_layers + 1, max(c.n_layers // 6, 1)):
    top = model(ids, exit_at=layers)[0, -1].topk(4).indices.tolist()
    print(f"after {layers:2} layers: {', '.join(repr(piece(token)) for token in top)}")

# %% [markdown]
# After 0 layers nothing has been added, and the last token finds itself. Early on there is little to do with what a text would go on with: only near
# the end the stream points at a next token. (In a dry lesson the model was never trained, so it never points anywhere.)
#
# ## Build it
#
# ### The norm
#
# The stream is a sum, and it grows from layer to layer. What is computed from it would grow too, until the numbers are infinite (below you take the
# norm away and see). So each part first brings the vector it reads to the same length; the stream itself stays as it is. A learnt weight for each
# number says how much that one counts.

# %% exercise="02.1"

# %%
with tp.using(rms_norm=tp.learner_or_reference("02.1")) as used:
    print("the next token, likeliest first:", [piece(token) for token in model(ids)[0, -1].topk(3).indices.tolist()])
print(used)

# %% [markdown]
# `tp.using` put that function in place of the library's, in the real model, for as long as the block lasted. It was called twice for each layer, and
# once before the end.
#
# ### Where a token stands
#
# Attention compares tokens by dot products, and a sum of products doesn't know the order of the words. So before two tokens are compared, each
# vector is *turned* by an angle that grows with its token's position. If both are turned, their dot product depends on the difference of the angles
# alone, so on how far apart they are. That is **RoPE**, rotary position embedding (Su et al. 2021, *RoFormer: Enhanced Transformer with Rotary
# Position Embedding*). A vector of $D$ numbers is taken as $D/2$ pairs, each a point in a plane; the first pair turns fast, the last hardly at all.

# %% exercise="02.2"

# %% [markdown]
# Is it true that only the distance counts? Two vectors, at several places, at three distances. (The vectors are made up; all that matters is whether
# each line repeats itself.)

# %%
turn, f = tp.learner_or_reference("02.2"), attention.frequencies(c)
q, k = (torch.sin(torch.arange(c.d_head) * w).view(1, 1, -1) for w in (0.7, 0.9))
at = lambda x, position: turn(x, *attention.turns(torch.tensor([position]), f)).flatten()
for distance in (0, 1, 20):
    products = [float(at(q, place + distance) @ at(k, place)) for place in (0, 7, 300)]
    print(f"{distance:2} apart, at three places: " + ", ".join(f"{product:8.3f}" for product in products))

# %% [markdown]
# ### Attention
#
# Each token makes three vectors: a **query** (what it is looking for), a **key** (what it can be found by) and a **value** (what it has to give). A
# token's query is multiplied with the keys of all tokens that it may see, the products become shares by a softmax, and the token takes the mixture of
# values that these shares say. *May see* means: itself and what stands before it. A score of minus infinity becomes a share of 0, and that is all a
# **mask** is.
#
# It is done several times side by side, by **heads**, each with queries, keys and values of its own. In this model some query heads share one head of
# keys and values, a **KV head** (**grouped** attention, Ainslie et al. 2023, *GQA*): unit 05 is about why.

# %% exercise="02.3"

# %%
with tp.using(attend=tp.learner_or_reference("02.3"), rope=turn) as used:
    print("the next token, likeliest first:", [piece(token) for token in model(ids)[0, -1].topk(3).indices.tolist()])
print(used)

# %% [markdown]
# ### The feed-forward part
#
# Most of a model's weights are here: a product that makes the vector wider, something that isn't a product, and a product that makes it narrow again.
# Without the something in the middle two products would be just one. Here it is a **gate**: one half of the wide vector says how much of the other
# half passes.

# %% exercise="02.4"

# %% [markdown]
# That is all of it. The rest of a pass is products of a matrix with a vector.
#
# ## Predict
#
# Attention is what these models are famous for. **What share of a pass's time does it take, in per cent**, when one token is passed after a short
# text? Its products (queries, keys, values, and the one at its end) count, and so does everything between them.

# %%
share = unit.predict("attention", None)  # per cent: a number in place of None

# %% [markdown]
# ## Measure
#
# Now every part of the plain model gets a stopwatch. The blue bars are measured. The orange ones are what the part would take if it did nothing but
# read its bytes at the roof; the hatched ones, nothing but multiply.
#
# *attention* are the products of that part, *scores* what stands between them: rotation, cache, softmax, mixture. *rest* is what the model does
# between its parts, as finding out which token may see which, and *outside* what stands around the model: the sampler, and the driver.

# %%
shown = anatomy.dissect(unit, PROMPT, share, passes=unit.size(quick=16, full=48))

# %% [markdown]
# Look for the parts whose blue bar is long while both others are short: they hardly read and hardly multiply. What they spend goes mostly to starting
# small operations, about thirty in every layer (unit 00 measured what a start costs). And look at the hatched bars beside the orange ones: for a
# single token multiplying is the smaller of the two, everywhere. (That reading is what a pass *waits* for is not shown by that; units 00 and 01 took
# memory away to find out, and it depends on the program.)
#
# The parts with large matrices have the bytes (counted here after 100 tokens, so a little more than in the figure):

# %%
unit.claim("weights", anatomy.parts(unit.config, 100, unit.number))

# %% [markdown]
# **For eight minutes, in class or alone.** Which part holds most of the weights, in a small model and in a large one? A layer's attention has about
# $2 d^2 (1 + G/H)$ weights, where $d$ is the width of the stream and $G$ of $H$ heads have keys of their own; its feed-forward part has $3 d \cdot
# F$,
# where $F$ is its inner width; embedding and head have $V \cdot d$, with $V$ tokens in the vocabulary. Work out the three shares for one of the
# shapes
# below, then run the cell. Why does the head matter so much in small models?
# <details><summary>A hint</summary>The vocabulary does not shrink with the model, and the number of layers multiplies only two of the
# three.</details>

# %%
for name in ("smollm2-135m", "qwen2.5-0.5b", "llama-3.1-8b"):
    shape = tp.preset(name)
    bytes_of = {part: read for part, (_, read, _) in anatomy.parts(shape, 100).items()}
    told = ", ".join(f"{part} {bytes_of[part] / sum(bytes_of.values()):4.0%}" for part in ("attention", "mlp", "head"))
    sizes = f"d {shape.d_model}, H {shape.n_heads}, G {shape.n_kv_heads}, F {shape.d_ff}, V {shape.vocab_size:,}, layers {shape.n_layers}"
    print(f"{name:13} {told}   ({sizes})")

# %% [markdown]
# ## From logits to a token
#
# A pass ends with logits, and softmax makes them probabilities: the model's **law** for the next token. Unit 01 always took the likeliest. Whoever
# wants a text that isn't always the same *draws*: each token as often as its probability says. A **sampler** may first reshape the law, in this
# order:
#
# - **temperature** divides all logits: below 1 the likely become likelier, above 1 all become more alike;
# - **top-k** keeps the k likeliest tokens, whatever their probability;
# - **top-p** keeps the fewest likeliest that together reach the share p (Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*);
# - **min-p** keeps those that have at least that share of the likeliest one's probability.

# The figures look at no more tokens than a recording can hold; the sentence says how many these are, and what share of the probability they have.

# %%
told = distribution.law(unit, PROMPT)
reshaped = distribution.reshape(unit, told, temperature=1.0)

# %% [markdown]
# Move the sliders (or change the line above; both do the same). Where does one setting do what another can't? Top-k keeps as many tokens whether the
# model is sure or not; top-p and min-p keep few where it is sure and many where it is not. (0 switches top-k and min-p off, 1 top-p.)

# %%
ranges = {"temperature": (0.1, 2.0, 0.1, 1.0), "top_k": (0, 50, 1, 0), "top_p": (0.05, 1.0, 0.05, 1.0), "min_p": (0.0, 0.5, 0.05, 0.0)}
controls.sliders(distribution.reshape, unit, told, ranges=ranges, screen=reshaped.screen)

# %% [markdown]
# How does a law become a token? With one random number.

# %% exercise="02.5"

# %% [markdown]
# ### Do the draws follow the law?
#
# One draw can't tell. So the model is asked for the next token again and again, each time with another seed, many rows in one pass. The dots are how
# often each token came; on the right is their distance to the law (**total variation**: half the sum of all differences), beside what exact draws
# would leave on average. A sampler that is a little wrong would level off above that line, however long one waits.

# %%
sampler = tp.Sampler(temperature=0.8, top_p=0.9)
part = tp.learner_or_reference("02.5")
with tp.using(draw=part) as used:
    drawn = distribution.sample(unit, PROMPT, told, sampler, unit.size(quick=1024, full=4096))
print(used if unit.lm else "a dry lesson replays the draws, so nothing was called")

# %%
unit.claim("law", drawn)

# %% [markdown]
# ### Cutting a law
#
# The most delicate of the settings is the one that most people use. *This exercise can wait: nothing below needs it.*

# %% exercise="02.6"

# %% [markdown]
# ## The model, through your parts
#
# All of it at once: norm, rotation, attention, gate, truncation and draw are now the ones of this notebook (or the reference's, where yours isn't
# done). The model writes twice: greedily, which is compared with what it writes through the library's own parts, and drawn.

# %%
ids_of = {"rms_norm": "02.1", "rope": "02.2", "attend": "02.3", "swiglu": "02.4", "draw": "02.5", "truncated": "02.6"}
parts = {name: tp.learner_or_reference(id) for name, id in ids_of.items()}
start, how = unit.encode(PROMPT), {"max_new_tokens": 24, "logprobs": True}
library = tp.generate(unit.plain, start, **how)
with tp.using(**parts) as used:
    wrote, drew = (tp.generate(unit.plain, start, sampler=law, seed=5, **how) for law in (tp.Sampler(), sampler))
for text in (wrote, drew):
    print(PROMPT + text.text if unit.lm else f"tokens {text.tokens}, of a model that was never trained: a dry lesson has no other")
same = next((i for i, (a, b) in enumerate(zip(wrote.tokens, library.tokens)) if a != b), len(wrote.tokens))
off = max((abs(a - b) for a, b in zip(wrote.logprobs[:same], library.logprobs)), default=0.0)
print(f"the first {same} of {len(wrote.tokens)} are the library's own, log P of each within {off:.2g} of it\n{used}")

# %% [markdown]
# The difference is rounding: numbers with few digits, added up in another order. Where two tokens are nearly equally likely it can decide between
# them, and from there on there are two texts; so a text is a poor judge of whether a part is right, and the checks above compare numbers.
#
# ## Break it
#
# What is each part good for? Take one away at a time, and read what the model writes. **Which of them can it do without?** Guess before you run the
# cell. (*Without scores* every token takes the same share from all tokens that it sees.)

# %%
bench = replace(unit, lm=unit.plain)  # the same lesson, on the model whose parts can be replaced
broken = {
    "whole": {},
    "without_norm": {"rms_norm": lambda x, weight, eps: x * weight},
    "without_positions": {"rope": lambda x, cos, sin: x},
    "without_scores": {"attend": lambda q, k, v, bias: attention.attend_plainly(0 * q, k, v, bias)},
    "without_gate": {"swiglu": lambda gate_up: gate_up.chunk(2, -1)[1]},
}
for name, part in broken.items():
    with tp.using(**part):
        run = bench.run(name, "The capital of France is Paris. The capital of Italy is", max_new_tokens=10)
        print(f"{name:17} {unit.decode(tp.canvas(step for step, _ in run))!r}")

# %% [markdown]
# A model is trained with all its parts, so none can be taken out without harm; but the ways in which it fails differ. Which of them still writes
# words, and do they answer? Which says one thing again and again? And where are there not even words? (Where there is nothing at all, the numbers
# grew from layer to layer until they were infinite, and the library stopped.)
#
# Samplers break more quietly. Here is what the model writes at a temperature of 0, which is greedy; at 2; and at 2 again, but cut to a nucleus.

# %%
for name, how in {"cold": {"temperature": 0.0}, "hot": {"temperature": 2.0}, "hot_cut": {"temperature": 2.0, "top_p": 0.3}}.items():
    run = unit.run(name, PROMPT, sampler=tp.Sampler(**how), seed=5, max_new_tokens=20)
    print(f"{name:9} {unit.decode(tp.canvas(step for step, _ in run))!r}")

# %% [markdown]
# At 2 each token that fits nowhere is still unlikely; but there are tens of thousands of them, and one or another is drawn again and again. The
# nucleus takes most of them away, and words come again, though hardly a text. And a nucleus can be too small: slide top-p down to its end, and only
# one token is left. That is greedy, whatever the temperature.
#
# ## The ledger
#
# Drawing doesn't change what a pass costs, so the new row should stand where the old one stands: the same bytes, one token kept from each pass. (The
# tiled kernels wrote this text; the bars above are PyTorch's own kernels, so the pace here isn't their sum.)
# *Exact*
# asks whether the distribution is that of plain decoding; the draws above have answered that.

# %%
before = unit.roof()
run = list(unit.run("write", PROMPT, sampler=sampler, seed=5, max_new_tokens=49, min_new_tokens=49))
stood = band(before, unit.roof())
exact = drawn.view.progress() == 1 and drawn.view.distance() < 2 * drawn.view.expected(drawn.view.n)
row = entry("autoregressive, sampled", run, unit.price, unit.device, unit.cache, stood, exact or None, unit.where)
unit.ledger(row)

# %%
plane = watch(ledgers.Plane(unit.ledger(row)), {})

# %%
unit.end()

# %% [markdown]
# ## What you know now
#
# - A pass carries a vector for each token through the layers. Attention and the feed-forward part read it, normalised, and add to it.
# - Tokens meet in attention alone; positions enter by turning queries and keys; a mask is a score of minus infinity.
# - Nearly all bytes of a pass are a few large matrices. The many small operations between them take time of their own.
# - A law becomes a token by one random number, and a sampler reshapes the law before.
#
# Next, unit 03 asks what of all this is computed again and again, and keeps it.
