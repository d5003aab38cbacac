"""Unit 02: norm, rotation, attention, feed-forward, truncation and draw, each as the real model calls it."""

import math

import torch
import torch.nn.functional as F

from tokenpace.exercises import exercise


def numbers(*shape, seed=0):
    """The same numbers at every call, drawn from the normal distribution."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# 02.1 ----------------------------------------------------------------------------------------------------------------

norm = exercise(
    "02.1",
    "rms_norm",
    task="Write the norm with which everything begins that reads the stream.",
    difficulty=1,
    minutes=5,
    target="tokenpace.model.transformer:rms_norm",
    needs="import torch",
    hints=(
        "Square, take the mean over the last dimension, add `eps`, take the root. `keepdim=True` keeps the shape such that you can divide by it.",
        "Begin with `wide = x.float()`, compute everything from `wide`, multiply by `weight.float()`, and end with `.to(x.dtype)`.",
    ),
    explanation="Only the length of a vector is set, not its mean: that is what RMSNorm saves compared with LayerNorm, and models learn as well "
    "(Zhang and Sennrich 2019). The squares are summed in float32 whatever the model's own numbers are, because squares leave the range or the "
    "precision of small formats first. `eps` keeps a vector of zeros from being divided by zero.",
)


@norm.solution
def rms_norm(x, weight, eps):
    """x [..., D] and weight [D] -> [..., D], in x's dtype: x divided by the root of the mean of its squares, times weight.

    The mean is taken over the last dimension, and `eps` is added to it before the root. Everything is computed in float32,
    also where x is bfloat16 or float16. Example: x = [3, 4], weight = [1, 1], eps = 0. The mean of 9 and 16 is 12.5,
    its root 3.54, so the result is [0.849, 1.131].
    """
    wide = x.float()
    length = (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return (wide / length * weight.float()).to(x.dtype)


@norm.trial("three tokens of eight numbers")
def _(rms_norm):
    return rms_norm(torch.linspace(-2, 3, 24).view(3, 8), torch.linspace(0.5, 2, 8), 1e-5)


@norm.trial("small numbers, beside which eps counts")
def _(rms_norm):
    return rms_norm(1e-3 * numbers(2, 8), torch.linspace(2, 1, 8), 1e-5)


@norm.trial("two tokens of three heads each: the last dimension is still the one")
def _(rms_norm):
    return rms_norm(numbers(2, 3, 8) + 1, torch.ones(8), 1e-6)


@norm.trial("a token of zeros")
def _(rms_norm):
    return rms_norm(torch.zeros(1, 8), torch.ones(8), 1e-5)


@norm.trial("bfloat16 in, bfloat16 out: is every result the exact one, rounded once?")
def _(rms_norm):
    x, weight = (10 * numbers(64, 576)).bfloat16(), (1 + 0.1 * numbers(576, seed=1)).bfloat16()
    y, wide = rms_norm(x, weight, 1e-5), x.double()
    exact = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    return str(y.dtype), bool(((y.double() - exact).abs() <= 2**-8 * 1.01 * exact.abs()).all())


@norm.mistake("You subtracted the mean: that is LayerNorm. RMSNorm only scales.")
def _(x, weight, eps):
    wide = x.float()
    wide = wide - wide.mean(-1, keepdim=True)
    return (wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.float()).to(x.dtype)


@norm.mistake("eps is missing: a vector of zeros would be 0/0.")
def _(x, weight, eps):
    wide = x.float()
    return (wide / wide.pow(2).mean(-1, keepdim=True).sqrt() * weight.float()).to(x.dtype)


@norm.mistake("eps belongs under the root, with the mean of the squares. You added it after the root.")
def _(x, weight, eps):
    wide = x.float()
    return (wide / (wide.pow(2).mean(-1, keepdim=True).sqrt() + eps) * weight.float()).to(x.dtype)


@norm.mistake(
    "You averaged over the tokens, or over all of them together. Every token has a length of its own: the mean goes over the last dimension only."
)
def _(x, weight, eps):
    wide = x.float()
    return (wide / (wide.pow(2).mean(0, keepdim=True) + eps).sqrt() * weight.float()).to(x.dtype)


@norm.mistake(
    "You averaged over the tokens, or over all of them together. Every token has a length of its own: the mean goes over the last dimension only."
)
def _(x, weight, eps):
    wide = x.float()
    return (wide / (wide.pow(2).mean() + eps).sqrt() * weight.float()).to(x.dtype)


@norm.mistake("You summed the squares. It is their mean: the M of RMS. Otherwise wider models would have smaller numbers.")
def _(x, weight, eps):
    wide = x.float()
    return (wide / (wide.pow(2).sum(-1, keepdim=True) + eps).sqrt() * weight.float()).to(x.dtype)


@norm.mistake("You divided by the mean of the squares. Take the root of it first.")
def _(x, weight, eps):
    wide = x.float()
    return (wide / (wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


@norm.mistake("The weight is missing: each of the D numbers is multiplied by its own.")
def _(x, weight, eps):
    wide = x.float()
    return (wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt()).to(x.dtype)


@norm.mistake("Right in float32, but in bfloat16 you round at every step. Widen x with .float() first and go back to its dtype once, in the end.")
def _(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


@norm.mistake("The numbers are right, but float32 came out where bfloat16 went in: end with .to(x.dtype).")
def _(x, weight, eps):
    wide = x.float()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.float()


# 02.2 ----------------------------------------------------------------------------------------------------------------

rotation = exercise(
    "02.2",
    "rope",
    task="Write the rotation that tells queries and keys where in the text their token stands.",
    difficulty=2,
    minutes=8,
    target="tokenpace.model.attention:rope",
    needs="import torch",
    hints=(
        "Make a second vector that has the two halves of x exchanged: place i holds what stood at i + D/2, and the other way round.",
        "With `half = x.shape[-1] // 2` the exchanged vector is `torch.cat([x[..., half:], x[..., :half]], -1)`. "
        "What remains is one product with cos, one with sin, and a sum.",
    ),
    explanation="A pair (a, b) turned by an angle is (a cos − b sin, b cos + a sin). With the pair's halves D/2 apart this is x·cos + exchanged·sin, "
    "where sin is negative for the first half. Turning both a query and a key leaves their dot product depending on the difference of their "
    "angles alone, so on their distance (Su et al. 2021, RoFormer). Some models pair neighbours instead; the weights decide which is right.",
)


@rotation.solution
def rope(x, cos, sin):
    """x [N, heads, D] -> [N, heads, D], in x's dtype: for each i < D/2 the pair (x[i], x[i + D/2]) turned by its token's i-th angle:

        new x[i]       = x[i]       * cos(angle i) - x[i + D/2] * sin(angle i)
        new x[i + D/2] = x[i + D/2] * cos(angle i) + x[i]       * sin(angle i)

    cos [N, 1, D] holds the cosines of the D/2 angles twice, one copy after the other. sin [N, 1, D] holds the sines twice, too,
    and its first half is negated already: that is the minus above. Both are float32, and so is what you compute in between.
    Example: D = 2, x = [1, 0], an angle of 90 degrees: cos = [0, 0], sin = [-1, 1], and the result is [0, 1].
    """
    half = x.shape[-1] // 2
    exchanged = torch.cat([x[..., half:], x[..., :half]], -1)
    return (x * cos + exchanged * sin).to(x.dtype)


def turned(rope, x, positions):
    angle = torch.tensor(positions).float()[:, None, None] / 100 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    return rope(x, torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1))


@rotation.trial("one pair, turned by 90 degrees")
def _(rope):
    return rope(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 0.0]]]), torch.tensor([[[-1.0, 1.0]]]))


@rotation.trial("a token at position 0, which is not turned at all")
def _(rope):
    return turned(rope, numbers(1, 2, 8), [0])


@rotation.trial("three tokens of four heads, at positions 1, 5 and 300")
def _(rope):
    return turned(rope, numbers(3, 4, 8, seed=1), [1, 5, 300])


@rotation.trial("bfloat16 in, bfloat16 out: is every result the exact one, rounded once?")
def _(rope):
    x, positions = (10 * numbers(64, 3, 16, seed=2)).bfloat16(), list(range(64))
    y = turned(rope, x, positions)
    exact = turned(lambda x, cos, sin: x * cos + torch.cat([x[..., 8:], x[..., :8]], -1) * sin, x.double(), positions)
    return str(y.dtype), list(y.shape), bool(((y.double() - exact).abs() <= 2**-8 * 1.01 * exact.abs() + 1e-4).all())


@rotation.mistake("You paired neighbours, (x[0], x[1]), (x[2], x[3]) … . Here x[i] belongs to x[i + D/2].")
def _(x, cos, sin):
    exchanged = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return (x * cos + exchanged * sin).to(x.dtype)


@rotation.mistake("You paired neighbours, (x[0], x[1]), (x[2], x[3]) … . Here x[i] belongs to x[i + D/2].")
def _(x, cos, sin):
    (a, b), half = (x[..., ::2], x[..., 1::2]), x.shape[-1] // 2
    cos, sin = cos[..., half:], sin[..., half:]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)


@rotation.mistake(
    "Right in float32, but in bfloat16 you round at every step: cos and sin are float32, so leave them so, and go back to x's dtype once."
)
def _(x, cos, sin):
    half, cos, sin = x.shape[-1] // 2, cos.to(x.dtype), sin.to(x.dtype)
    return x * cos + torch.cat([x[..., half:], x[..., :half]], -1) * sin


@rotation.mistake("It turns with one sign too many: sin's first half is negated already, so nothing has to be negated here.")
def _(x, cos, sin):
    half = x.shape[-1] // 2
    exchanged = torch.cat([-x[..., half:], x[..., :half]], -1)
    return (x * cos + exchanged * sin).to(x.dtype)


@rotation.mistake("It turns backwards: the product with sin is added, not subtracted.")
def _(x, cos, sin):
    half = x.shape[-1] // 2
    exchanged = torch.cat([x[..., half:], x[..., :half]], -1)
    return (x * cos - exchanged * sin).to(x.dtype)


@rotation.mistake("You multiplied x itself by sin. A rotation mixes the two numbers of a pair: the product with sin takes the other half of x.")
def _(x, cos, sin):
    return (x * cos + x * sin).to(x.dtype)


@rotation.mistake("You turned the order of x around. Only the halves change places; within a half the order stays.")
def _(x, cos, sin):
    return (x * cos + x.flip(-1) * sin).to(x.dtype)


@rotation.mistake("The numbers are right, but float32 came out where bfloat16 went in: the product with cos is float32. End with .to(x.dtype).")
def _(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([x[..., half:], x[..., :half]], -1) * sin


# 02.3 ----------------------------------------------------------------------------------------------------------------

attention = exercise(
    "02.3",
    "attend",
    task="Write attention: what a token takes from those it may see.",
    difficulty=4,
    minutes=12,
    target="tokenpace.model.attention:attend",
    needs="import math\n\nimport torch",
    hints=(
        "First give every query head its own copy of its KV head: `k.repeat_interleave(H // G, 2)`, and the same for v. "
        "Then all three have H heads, and it is softmax(q·k / √D + bias)·v for each.",
        'Scores [b, H, t, S] are `torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(D)`. Take them to float32, add `bias[:, None]`, take the softmax '
        'over the last dimension, go back to v\'s dtype. The end is `torch.einsum("bhts,bshd->bthd", shares, v)`.',
    ),
    explanation="Scores are divided by √D because a dot product of D random numbers grows as √D, and a softmax of large numbers sees nothing but the "
    "largest (Vaswani et al. 2017, section 3.2.1). The bias is minus infinity where a token must not look, so its share is exactly 0 and the others "
    "still sum to 1. Grouped heads (Ainslie et al. 2023, GQA) keep H/G times fewer keys and values in memory; here they are copied for clarity, "
    "which the package's own attention never does.",
)


@attention.solution
def attend(q, k, v, bias):
    """q [b, t, H, D], k and v [b, S, G, D], bias [b, t, S] -> [b, t, H, D], in q's dtype.

    Each of b rows has t tokens that look at S tokens. For each head: softmax(q·k / sqrt(D) + bias) over the S tokens looked at,
    and with these shares the sum of their v. bias is 0 where a token may look and -inf where it may not.
    H is a multiple of G: of H = 6 and G = 2 query heads 0, 1, 2 share KV head 0, and 3, 4, 5 share KV head 1.
    The softmax is computed in float32. Example with b = t = H = G = D = 1, S = 2: q = 1, k = [0, 0], v = [2, 4], bias = [0, 0]:
    both scores are 0, both shares 0.5, the result is 3.
    """
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
    shares = (scores.float() + bias[:, None].float()).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", shares.to(v.dtype), v)


def causal(t, s, dtype=torch.float32):
    """The last t of s tokens, each of which sees itself and what is before it: [1, t, s]."""
    seen = torch.arange(s)[None] <= torch.arange(s - t, s)[:, None]
    return torch.where(seen, 0.0, -torch.inf).to(dtype)[None]


@attention.trial("one head, one token that looks at two")
def _(attend):
    return attend(torch.tensor([1.0, 2.0]).view(1, 1, 1, 2), numbers(1, 2, 1, 2), numbers(1, 2, 1, 2, seed=1), torch.zeros(1, 1, 2))


@attention.trial("six query heads on two KV heads, one token that sees all")
def _(attend):
    return attend(numbers(1, 1, 6, 4), numbers(1, 5, 2, 4, seed=1), numbers(1, 5, 2, 4, seed=2), torch.zeros(1, 1, 5))


@attention.trial("four tokens, none of which sees the ones after it")
def _(attend):
    return attend(2 * numbers(1, 4, 4, 8), 2 * numbers(1, 4, 2, 8, seed=1), numbers(1, 4, 2, 8, seed=2), causal(4, 4))


@attention.trial("two rows, three tokens each, seven to look at, bfloat16")
def _(attend):
    q, k, v = (numbers(2, n, h, 16, seed=n).bfloat16() for n, h in ((3, 6), (7, 2), (7, 2)))
    return attend(q, k, v, causal(3, 7, torch.bfloat16).expand(2, -1, -1))


def variant(scale=math.sqrt, over=-1, interleaved=False, biased=True, zeroed=False):
    """Attention with one thing done wrong."""

    def wrong(q, k, v, bias):
        group = q.shape[2] // k.shape[2]
        spread = (lambda x: x.repeat(1, 1, group, 1)) if interleaved else (lambda x: x.repeat_interleave(group, 2))
        k, v = spread(k), spread(v)
        scores = (torch.einsum("bthd,bshd->bhts", q, k) / scale(q.shape[-1])).float()
        weights = (scores + bias[:, None].float() if biased else scores).softmax(over)
        weights = torch.where(bias[:, None] == 0, weights, 0.0) if zeroed else weights
        return torch.einsum("bhts,bshd->bthd", weights.to(v.dtype), v)

    return wrong


attention.mistake("The scores are too large: divide the dot products by √D before the softmax.")(variant(scale=lambda d: 1))
attention.mistake("You divided by D. It is √D: a dot product of D random numbers grows only as their root.")(variant(scale=lambda d: d))
attention.mistake("The softmax goes over the wrong dimension: for each token that looks, the shares of the S tokens looked at sum to 1.")(
    variant(over=-2)
)
attention.mistake("The KV heads came in the wrong order. Query head h uses KV head h // (H/G): 0, 0, 0, 1, 1, 1. `repeat` gives 0, 1, 0, 1, 0, 1.")(
    variant(interleaved=True)
)
attention.mistake("Tokens look into the future: add bias to the scores before the softmax.")(variant(biased=False))
attention.mistake(
    "You took hidden tokens out after the softmax, so the shares that are left no longer sum to 1. Add bias (-inf for hidden ones) before it."
)(variant(biased=False, zeroed=True))


# 02.4 ----------------------------------------------------------------------------------------------------------------

gated = exercise(
    "02.4",
    "swiglu",
    task="Write what stands between the two products of the feed-forward part.",
    difficulty=1,
    minutes=4,
    target="tokenpace.model.transformer:swiglu",
    needs="import torch\nimport torch.nn.functional as F",
    hints=(
        "`gate, up = gate_up.chunk(2, -1)` cuts the last dimension in two.",
        "silu is in PyTorch: `F.silu(gate)`. What is left is one multiplication.",
    ),
    explanation="The gate decides how much of each number passes: silu is nearly 0 for negative gates and nearly the gate itself for positive ones. "
    "Two halves and a product learnt better than one half and a bend (Shazeer 2020); why is not known: that paper's conclusion "
    "attributes it to divine benevolence. PyTorch's F.silu computes bfloat16 in float32 and rounds once.",
)


@gated.solution
def swiglu(gate_up):
    """gate_up [N, 2F] -> [N, F]. The first F numbers of each token are its gate, the last F are what is gated: silu(gate) * up.

    silu(z) = z * sigmoid(z). Example: gate_up = [1, 0, 5, 7]: gate is [1, 0], up is [5, 7]; silu(1) = 0.731, silu(0) = 0,
    so the result is [3.655, 0].
    """
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


@gated.trial("one token, gate [1, 0] and up [5, 7]")
def _(swiglu):
    return swiglu(torch.tensor([[1.0, 0.0, 5.0, 7.0]]))


@gated.trial("three tokens of twice four numbers")
def _(swiglu):
    return swiglu(2 * numbers(3, 8))


@gated.trial("a strongly negative gate")
def _(swiglu):
    return swiglu(torch.tensor([[-100.0, -3.0, 2.0, 2.0]]))


@gated.trial("bfloat16 in, bfloat16 out")
def _(swiglu):
    return swiglu(numbers(2, 16, seed=3).bfloat16())


@gated.mistake("The halves are exchanged: the first half is the gate and goes through silu, the second is what it gates.")
def _(gate_up):
    up, gate = gate_up.chunk(2, -1)
    return F.silu(gate) * up


@gated.mistake("You gated with sigmoid (that is GLU). silu(z) is z times sigmoid(z).")
def _(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return torch.sigmoid(gate) * up


@gated.mistake("You gated with relu (that is ReGLU). silu is smooth: z times sigmoid(z).")
def _(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.relu(gate) * up


@gated.mistake("You gated with gelu (that is GEGLU). silu looks alike, but is z times sigmoid(z).")
def _(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate) * up


@gated.mistake("You took every other number for the gate. It is the whole first half.")
def _(gate_up):
    return F.silu(gate_up[..., ::2]) * gate_up[..., 1::2]


@gated.mistake("Only the gate goes through silu; what it gates stays as it is.")
def _(gate_up):
    gate, up = F.silu(gate_up).chunk(2, -1)
    return gate * up


# 02.5 ----------------------------------------------------------------------------------------------------------------

drawing = exercise(
    "02.5",
    "draw",
    task="Draw a token from a distribution, with a random number that is given.",
    difficulty=2,
    minutes=8,
    target="tokenpace.decode.sampling:draw",
    needs="import torch",
    hints=(
        "Lay the probabilities end to end on a line: `mass = p.cumsum(-1)` says where each token's piece ends. u says how far along the line to go.",
        "With `at = u[:, None] * mass[:, -1:]` the token is the number of pieces that end before `at`: `(mass < at).sum(-1)`.",
    ),
    explanation="A piece as long as the token's probability is hit by a uniform number exactly that often: that is inverting the distribution "
    "function. Strictly less is what keeps tokens of probability 0 out: their piece ends where the one before it does. The random number comes from "
    "outside, so that a text depends on its seed alone and every row of a pass is drawn at once.",
)


@drawing.solution
def draw(p, u):
    """p [N, V] and u [N] -> tokens [N] (int64): for each row one token, each as often as its probability says.

    u holds one uniform random number above 0 and below 1 for each row; the same u always gives the same token. Lay a row's
    probabilities end to end, go the share u of the way, and take the token whose piece you stand in. On the border of two, it is
    the left one; but never a token of probability 0. The rows of p need not sum to 1: what counts is a token's share of the sum.
    Example: p = [[0.2, 0.5, 0.3]]: u = [0.1] gives [0], u = [0.6] gives [1], u = [0.9] gives [2].
    """
    mass = p.cumsum(-1)
    at = u[:, None].to(p.dtype) * mass[:, -1:]
    return (mass < at).sum(-1)


@drawing.trial("p = [0.2, 0.5, 0.3] and u = 0.1, 0.6, 0.9")
def _(draw):
    return draw(torch.tensor([[0.2, 0.5, 0.3]] * 3), torch.tensor([0.1, 0.6, 0.9]))


@drawing.trial("tokens of probability 0 at both ends and in between, u = 0.001, 0.5 and 0.999")
def _(draw):
    return draw(torch.tensor([[0.0, 0.5, 0.0, 0.0, 0.5, 0.0]] * 3), torch.tensor([0.001, 0.5, 0.999]))


@drawing.trial("all mass on one token, which is what greedy is")
def _(draw):
    return draw(torch.tensor([[0.0, 0.0, 1.0, 0.0]] * 2), torch.tensor([0.02, 0.98]))


@drawing.trial("rows that sum to 4 and to 1/2")
def _(draw):
    return draw(torch.tensor([[1.0, 2.0, 0.5, 0.5], [0.125, 0.25, 0.0625, 0.0625]]), torch.tensor([0.6, 0.8]))


@drawing.trial("how often each of four tokens comes in 1,000 draws with evenly spread u")
def _(draw):
    u = (torch.arange(1000) + 0.5) / 1000
    return draw(torch.tensor([[0.1, 0.4, 0.2, 0.3]]).expand(1000, -1), u).bincount(minlength=4).tolist()


@drawing.trial("u in float64, as the package's noise gives it, just below 1")
def _(draw):
    return draw(torch.tensor([[0.25, 0.75, 0.0]]), torch.tensor([1 - 2.0**-40], dtype=torch.float64))


@drawing.mistake("You took the likeliest token, whatever u is: that is greedy, not a draw.")
def _(p, u):
    return p.argmax(-1)


@drawing.mistake("One token too far: count the pieces that end strictly before the place. Here even a token of probability 0 can come out.")
def _(p, u):
    mass = p.cumsum(-1)
    return (mass < u[:, None].to(p.dtype) * mass[:, -1:]).sum(-1) + 1


@drawing.mistake("On the border of two pieces it is the left one: count those that end strictly before. With <= a u that rounds to 1 runs off.")
def _(p, u):
    mass = p.cumsum(-1)
    return (mass <= u[:, None].to(p.dtype) * mass[:, -1:]).sum(-1)


@drawing.mistake("On the border of two pieces it is the left one: count those that end strictly before. With <= a u that rounds to 1 runs off.")
def _(p, u):
    mass = p.cumsum(-1)
    return (mass <= u[:, None] * mass[:, -1:]).sum(-1)


@drawing.mistake("You compared u with the probabilities themselves. Compare it with their running sum: where each piece ends.")
def _(p, u):
    return (p < u[:, None].to(p.dtype)).sum(-1).clamp(max=p.shape[-1] - 1)


@drawing.mistake("Right for rows that sum to 1, but the share u is of the whole sum: multiply u by the last running sum.")
def _(p, u):
    return (p.cumsum(-1) < u[:, None].to(p.dtype)).sum(-1)


@drawing.mistake("You used the first row's u for all rows. Each has its own.")
def _(p, u):
    mass = p.cumsum(-1)
    return (mass < u[0].to(p.dtype) * mass[:, -1:]).sum(-1)


# 02.6 ----------------------------------------------------------------------------------------------------------------

nucleus = exercise(
    "02.6",
    "truncated",
    task="Cut a distribution down to its k likeliest tokens, and these to a nucleus of mass p.",
    difficulty=4,
    minutes=12,
    target="tokenpace.decode.sampling:truncated",
    needs="import torch",
    hints=(
        "`w.sort(-1, descending=True)` gives the probabilities from the likeliest on, and which token each belongs to. "
        "In that order top-k is a comparison of places, top-p one of running sums.",
        "A token stays if the share *before* it (running sum minus its own) is below p: so the one that crosses p is in. Shares are shares of what "
        "top-k left. In the end `torch.zeros_like(w).scatter(-1, token, kept)` puts everything back in its place, and a division makes it sum to 1.",
    ),
    explanation="What is kept is decided in the order of probability and put back in the order of the vocabulary. The token that crosses p belongs "
    "to the nucleus (Holtzman et al. 2020, section 3.1: the smallest set that reaches p); without it a confident model could be left with nothing. "
    "The order top-k, then top-p is a convention, and it matters. The package's own looks among 64 tokens first, for sorting a vocabulary is dear.",
)


@nucleus.solution
def truncated(w, top_k, top_p):
    """w [N, V] -> [N, V]: of each row only the top_k likeliest tokens, of these only the fewest likeliest whose share reaches top_p.

    top_k and top_p are lists with one number for each row (k = V keeps all, p = 1 keeps all that k left). Shares are of what k
    left. The token with which the share reaches p is kept. All others become 0, and each row of the result sums to 1.
    Example: w = [[0.1, 0.4, 0.2, 0.3]], top_k = [3], top_p = [0.6]: k leaves 0.4, 0.3, 0.2, which are shares of 0.44, 0.33,
    0.22; the first has not reached 0.6, with the second it is 0.78. So 0.4 and 0.3 stay: the result is [[0, 0.571, 0, 0.429]].
    """
    k, p = torch.tensor(top_k, device=w.device)[:, None], torch.tensor(top_p, device=w.device)[:, None]
    top, token = w.sort(-1, descending=True)
    top = torch.where(torch.arange(w.shape[-1], device=w.device) < k, top, 0.0)
    share = top / top.sum(-1, keepdim=True)
    before = share.cumsum(-1) - share
    kept = torch.where((before < p) | (p == 1), top, 0.0)
    return torch.zeros_like(w).scatter(-1, token, kept / kept.sum(-1, keepdim=True))


P = [0.1, 0.4, 0.2, 0.3]


@nucleus.trial("[0.1, 0.4, 0.2, 0.3] with k = 3, p = 0.6")
def _(truncated):
    return truncated(torch.tensor([P]), [3], [0.6])


@nucleus.trial("the same with k = 2, p = 1: top-k alone")
def _(truncated):
    return truncated(torch.tensor([P]), [2], [1.0])


@nucleus.trial("the same with k = 4, p = 0.65: top-p alone")
def _(truncated):
    return truncated(torch.tensor([P]), [4], [0.65])


@nucleus.trial("the same with k = 2, p = 0.55: the first token is 0.57 of what k left")
def _(truncated):
    return truncated(torch.tensor([P]), [2], [0.55])


@nucleus.trial("three rows with settings of their own")
def _(truncated):
    return truncated(torch.tensor([P, [0.05, 0.05, 0.2, 0.7], [0.3, 0.28, 0.22, 0.2]]), [4, 3, 1], [0.9, 0.75, 0.5])


@nucleus.trial("a vocabulary of 3,000 tokens, nothing cut off")
def _(truncated):
    return truncated((0.1 * numbers(1, 3000)).softmax(-1), [3000], [1.0])


def cut(w, top_k, top_p, *, crossing=True, first="k", more=0, settled=True, alone=False, back=True, least=1e-9, reached=False, shares=False):
    """Truncation with one thing done wrong."""
    k, p = torch.tensor(top_k)[:, None] + more, torch.tensor(top_p)[:, None]
    k, p = (k[:1], p[:1]) if alone else (k, p)
    top, token = w.sort(-1, descending=True)
    within = torch.arange(w.shape[-1]) < k
    share = torch.where(within, top, 0.0) if first == "k" else top
    share = share / share.sum(-1, keepdim=True)
    before = share.cumsum(-1) - share * crossing
    kept = torch.where((((before <= p) if reached else (before < p)) | (p == 1)) & within, share if shares else top, 0.0)
    kept = kept / kept.sum(-1, keepdim=True).clamp(min=least) if settled else kept
    return torch.zeros_like(w).scatter(-1, token, kept) if back else kept


@nucleus.mistake("You dropped the token that crosses p. It belongs to the nucleus: keep a token if the share before it is below p.")
def _(w, top_k, top_p):
    return cut(w, top_k, top_p, crossing=False)


@nucleus.mistake("You dropped the token that crosses p. It belongs to the nucleus: keep a token if the share before it is below p.")
def _(w, top_k, top_p):
    return cut(w, top_k, top_p, crossing=False, least=0)


@nucleus.mistake("You dropped the token that crosses p. It belongs to the nucleus: keep a token if the share before it is below p.")
def _(w, top_k, top_p):
    return cut(w, top_k, top_p, crossing=False, least=0, reached=True)


@nucleus.mistake("What is left no longer sums to 1: divide by its sum.")
def _(w, top_k, top_p):
    return cut(w, top_k, top_p, settled=False)


@nucleus.mistake("What is left no longer sums to 1: divide by its sum, once more after top-p.")
def _(w, top_k, top_p):
    return cut(w, top_k, top_p, settled=False, shares=True)


@nucleus.mistake("You took top-p's shares of the whole row. Top-k comes first, and shares are of what it left.")
def _(w, top_k, top_p):
    return cut(w, top_k, top_p, first="p")


@nucleus.mistake("One token too many for top-k: places are counted from 0, so the first k are those below k.")
def _(w, top_k, top_p):
    return cut(w, top_k, top_p, more=1)


@nucleus.mistake("You used the first row's k and p for all rows. Each has its own.")
def _(w, top_k, top_p):
    return cut(w, top_k, top_p, alone=True)


@nucleus.mistake(
    "The probabilities came back sorted. Put each back where its token stands: sort also says which token it was, and scatter uses that."
)
def _(w, top_k, top_p):
    return cut(w, top_k, top_p, back=False)


@nucleus.mistake("You kept tokens whose own probability is at least p. It is the running sum, from the likeliest on, that has to reach p.")
def _(w, top_k, top_p):
    k, p = torch.tensor(top_k)[:, None], torch.tensor(top_p)[:, None]
    top, token = w.sort(-1, descending=True)
    kept = torch.where((torch.arange(w.shape[-1]) < k) & ((top >= p) | (p == 1)), top, 0.0)
    return torch.zeros_like(w).scatter(-1, token, kept / kept.sum(-1, keepdim=True).clamp(min=1e-9))
