"""Unit 03, The cache: what is passed again and again, what it costs to keep it instead, where it is kept, and what a reader feels of it."""

import torch

from tokenpace.cache.protocol import Cache, Rectangle
from tokenpace.config import ModelConfig
from tokenpace.exercises import exercise

# 03.1 --------------------------------------------------------------------------------------------------------------

passed = exercise(
    "03.1",
    "tokens_passed",
    task="Count the tokens that go through the model, all passes of one text together.",
    difficulty=1,
    minutes=5,
    hints=(
        "Write down what each pass is fed for a prompt of three tokens and a text of four new ones, once with a cache and once without. "
        "The table above has the beginning of both lists.",
        "The token written last is never fed to anything. Without a cache the pass that writes token number i, counted from 0, is fed prompt + i.",
    ),
    explanation="With a cache every token is passed once, except the last, which nobody needs any more. Without one each pass gets the whole text "
    "so far: prompt, prompt + 1, … up to prompt + new - 1. That sum is new · prompt + new · (new - 1) / 2, and its second part is the square "
    "that this unit is about.",
)


@passed.solution
def tokens_passed(prompt, new, cached):
    """How many tokens go through the model until the last of the new ones is written, all passes added up.

    prompt, new: numbers of tokens, at least 1 · cached: True with a cache, False without

    A prompt of 3 and 2 new ones: with a cache the passes are fed 3 and 1 tokens, together 4; without, 3 and 4 tokens, together 7.
    """
    if cached:
        return prompt + new - 1
    return sum(prompt + i for i in range(new))


for prompt, new in ((5, 1), (3, 4), (100, 50)):
    for cached in (True, False):
        passed.trial(f"a prompt of {prompt}, {new} new, {'with' if cached else 'without'} a cache")(
            lambda tokens_passed, prompt=prompt, new=new, cached=cached: tokens_passed(prompt, new, cached)
        )


@passed.mistake("You pass the last token, too. Which pass would it be fed to? Nothing comes after it.")
def _(prompt, new, cached):
    return prompt + new if cached else sum(prompt + i + 1 for i in range(new))


@passed.mistake("Without a cache you left the token written last out, and rightly: nothing is fed with it. With a cache nothing is, either.")
def _(prompt, new, cached):
    return prompt + new if cached else sum(prompt + i for i in range(new))


@passed.mistake("Without a cache each pass gets the prompt again, not only the first one.")
def _(prompt, new, cached):
    return prompt + new - 1 if cached else prompt + sum(range(new))


@passed.mistake("The passes are not all as wide as the last: each gets one token more than the one before it.")
def _(prompt, new, cached):
    return prompt + new - 1 if cached else new * (prompt + new - 1)


@passed.mistake("That is the number of passes. How many tokens is each of them fed?")
def _(prompt, new, cached):
    return new


# 03.2 --------------------------------------------------------------------------------------------------------------

held = exercise(
    "03.2",
    "kv_bytes",
    task="Count the bytes of the keys and values of a text.",
    difficulty=2,
    minutes=5,
    hints=(
        "Begin with one token in one layer: how many keys does it have there, and how many numbers is each?",
        "A key and a value, of head_size numbers each, for each KV head (not for each query head), in each layer, for each token.",
    ),
    explanation="Every layer keeps a key and a value of each token for each of its KV heads. Queries are not kept: they belong to the token that "
    "is asking, and that is never an old one. Several query heads share one KV head here (Ainslie et al. 2023, GQA), and that makes the cache as "
    "many times smaller.",
)


@held.solution
def kv_bytes(layers, query_heads, kv_heads, head_size, tokens, number):
    """Bytes that the keys and values of `tokens` tokens fill.

    layers, query_heads, kv_heads, head_size: of the model; a key has head_size numbers, and so has a value · number: bytes of a number

    1 layer, 2 query heads, 1 KV head of 4 numbers, 1 token, 2 bytes a number: 16 bytes.
    """
    return 2 * layers * kv_heads * head_size * tokens * number


@held.trial("30 layers, 9 query heads, 3 KV heads of 64 numbers, 100 tokens, 2 bytes a number")
def _(kv_bytes):
    return kv_bytes(30, 9, 3, 64, 100, 2)


@held.trial("2 layers, 4 query heads, 4 KV heads of 8 numbers, 7 tokens, 4 bytes a number")
def _(kv_bytes):
    return kv_bytes(2, 4, 4, 8, 7, 4)


@held.mistake("Keys *and* values: both are kept.")
def _(layers, query_heads, kv_heads, head_size, tokens, number):
    return layers * kv_heads * head_size * tokens * number


@held.mistake("You counted query heads. Queries are not kept, and several query heads look at the same KV head.")
def _(layers, query_heads, kv_heads, head_size, tokens, number):
    return 2 * layers * query_heads * head_size * tokens * number


@held.mistake("That is one layer. Each layer has keys and values of its own.")
def _(layers, query_heads, kv_heads, head_size, tokens, number):
    return 2 * kv_heads * head_size * tokens * number


@held.mistake("Those are bits: a byte has eight of them.")
def _(layers, query_heads, kv_heads, head_size, tokens, number):
    return 8 * 2 * layers * kv_heads * head_size * tokens * number


@held.mistake("You counted numbers. How many bytes is each?")
def _(layers, query_heads, kv_heads, head_size, tokens, number):
    return 2 * layers * kv_heads * head_size * tokens


@held.mistake("That is a square of the tokens. Each token keeps its own keys and values, however many others there are.")
def _(layers, query_heads, kv_heads, head_size, tokens, number):
    return 2 * layers * kv_heads * head_size * tokens**2 * number


# 03.3 --------------------------------------------------------------------------------------------------------------

seen = exercise(
    "03.3",
    "visible",
    task="Say which keys each token in the pass may look at, from nothing but positions.",
    difficulty=3,
    minutes=8,
    target="tokenpace.model.attention:visible",
    hints=(
        "r.queries[:, :, None] has shape [b, t, 1] and r.keys[:, None, :] has shape [b, 1, S]: their difference has shape [b, t, S] and says how far "
        "back each key lies from each query.",
        "seen = (gap >= 0) & (r.keys >= 0)[:, None, :], and with a window also gap < window. At the end let rows of padding see everything: "
        "| (r.queries < 0)[:, :, None].",
    ),
    explanation="The distance from query to key answers everything: 0 is the token itself, a negative one is the future, and a window of w sees the "
    "distances 0 to w - 1. A cell that holds nothing has position -1, which would pass for a key far back, so it is excluded by name. No length, no "
    "padding side, no phase: the same line serves prefill and decode step. The library's version also knows sinks, two-way models, and passes whose "
    "tokens are a tree, for later units.",
)


@seen.solution
def visible(r, window=None, sinks=0, causal=True):
    """Which keys each query sees: bool [b, t, S], True where it sees.

    r.queries [b, t]: positions of the tokens in the pass; -1 is padding (b rows, t tokens in each)
    r.keys [b, S]: the position that each cell of the cache holds, in any order; -1 means that nothing is there

    A key is seen if something is there, and it does not lie in the future of the query (a token does see itself), and it lies in the window, where
    there is one: a window of 3 sees the token itself and two before it. A query that is padding sees every cell: a softmax over nothing would be NaN.
    Leave sinks and causal alone; they are for later units.

    Queries at 4, keys at 3, 4, 5, -1, without a window: [[[True, True, False, False]]]
    """
    gap = r.queries[:, :, None] - r.keys[:, None, :]
    seen = (gap >= 0) & (r.keys >= 0)[:, None, :]
    if window is not None:
        seen = seen & (gap < window)
    return seen | (r.queries < 0)[:, :, None]


def rectangle(queries, keys):
    return Rectangle(slice(0, len(queries)), len(keys[0]), torch.tensor(queries), torch.tensor(keys))


@seen.trial("a prompt of four tokens, nothing before it")
def _(visible):
    return visible(rectangle([[0, 1, 2, 3]], [[0, 1, 2, 3]]))


@seen.trial("one token after six, two cells empty")
def _(visible):
    return visible(rectangle([[6]], [[0, 1, 2, 3, 4, 5, 6, -1, -1]]))


@seen.trial("a window of three")
def _(visible):
    return visible(rectangle([[1, 5, 6]], [[0, 1, 2, 3, 4, 5, 6, -1]]), 3)


@seen.trial("cells that are not in order")
def _(visible):
    return visible(rectangle([[4, 5]], [[3, 5, -1, 0, 7]]))


@seen.trial("two rows, the second of them padded")
def _(visible):
    return visible(rectangle([[2, 3], [4, -1]], [[0, 1, 2, 3, -1], [0, 1, 2, 3, 4]]))


def _mask(there=True, past=lambda gap: gap >= 0, inside=lambda gap, window: gap < window, padding=True):
    """The solution with one of its rules changed or left out."""

    def visible(r, window=None, sinks=0, causal=True):
        gap = r.queries[:, :, None] - r.keys[:, None, :]
        seen = past(gap)
        if there:
            seen = seen & (r.keys >= 0)[:, None, :]
        if window is not None:
            seen = seen & inside(gap, window)
        return seen | (r.queries < 0)[:, :, None] if padding else seen

    return visible


seen.mistake("A token does not see itself in yours: a distance of 0 is not the future.")(_mask(past=lambda gap: gap > 0))
seen.mistake("Empty cells are seen: a key of -1 is no token that lies far back, there is nothing.")(_mask(there=False))
seen.mistake("The window is one too wide: a window of 3 sees distances of 0, 1 and 2.")(_mask(inside=lambda gap, window: gap <= window))
seen.mistake("The future is seen: a key after the query must be hidden, or the answer is known before it is asked for.")(
    _mask(past=lambda gap: torch.ones_like(gap, dtype=torch.bool))
)
seen.mistake("The window is not looked at.")(_mask(inside=lambda gap, window: gap >= 0))
seen.mistake("A query that is padding sees nothing: the softmax over its row will be NaN. Let it see everything.")(_mask(padding=False))


@seen.mistake("The axes are the wrong way round: one row for each query, [b, t, S], not one for each key.")
def _(r, window=None, sinks=0, causal=True):
    return _mask()(r, window).transpose(1, 2)


# 03.4 --------------------------------------------------------------------------------------------------------------

slab = exercise(
    "03.4",
    "Slab",
    task="Decide where in memory each token's keys and values lie, and find them again.",
    difficulty=4,
    minutes=17,
    target="tokenpace.cache.slab:Slab",
    needs="import torch",
    hints=(
        "Take 2 rows of 3 cells. With one more for padding, row 0 has the slots 0, 1, 2 and 3, row 1 has 4, 5, 6 and 7. Which slot is cell c of "
        "row r? How many are there in all?",
        "slot is row * (self.cells + 1) + cell. view is x.view(self.rows, self.cells + 1, *x.shape[1:]), then [rows, :end]. "
        "reserve raises where last > self.cells. span is self.cells if fixed, else the smaller of last and self.cells.",
    ),
    explanation="A slab is the simplest layout: row after row, each as long as it may ever get. All arithmetic is in one line, "
    "slot = row · (cells + 1) + cell. The extra cell lets a pass be a rectangle: a short row's padding is written where nobody looks, without an if. "
    "What is paid for simplicity is room: every row has the cells of the longest text, used or not. Pages (Kwon et al. 2023, unit 09) are another "
    "class with the same methods.",
    skeleton='''
class Slab:
    """rows × capacity cells, row after row, for a store whose tensors have one slot for each of them: [slots, …].

    A cell is a token's place in its row: the token at position 5 is in cell 5. Each row has one more cell, after the others. Padding is written
    there, by the rows of a pass that have fewer tokens than its widest row, and nobody looks at it.
    """

    def __init__(self, rows, capacity, fixed=False):
        """rows: texts side by side · capacity: tokens each may have · fixed: always look at all cells, not only at those in use"""
        self.rows, self.cells, self.fixed = rows, capacity, fixed
        self.slots = None  # how many slots there must be in all

    def slot(self, row, cell):
        """The slot of a cell of a row. Both are whole numbers, or tensors of them: use arithmetic only. No two cells share a slot.

        The padding's cell is number self.cells.
        """
        ...

    def span(self, last):
        """How many cells, from the first, one must look at to see every token below position `last`: of a fixed slab all, else no more than needed.

        `last` may be larger than a row (a padded row ends beyond it): never more cells than a row has, without the one for padding.
        """
        ...

    def reserve(self, row, first, last):
        """Tokens are coming for the positions from `first` to below `last`. Raise a ValueError if the row has no room for them.

        A row of 4 cells has room for last = 4. (That is all: in a slab there is nothing else to do.)
        """
        ...

    def view(self, x, rows, end):
        """x [slots, …], what is stored -> [rows, end, …]: the first `end` cells of these rows. `rows` is a slice or a tensor of row numbers."""
        ...

    # What follows is done: it needs only your slot and span.

    def cell(self, index):
        """The cell of a position: in a slab, the same number."""
        return index

    def trim(self, row, end):
        """Tokens from position `end` on are gone. A slab has nothing to give back."""

    def copy(self, src, dst, cache):
        """Row dst[i] becomes what row src[i] is."""
        cells = torch.arange(self.span(max(cache.top[s] for s in src)))
        cache.move(self.slot(torch.tensor(src)[:, None], cells).flatten(), self.slot(torch.tensor(dst)[:, None], cells).flatten())
''',
)


@slab.solution
class Slab:
    """rows × capacity cells, row after row, and one more in each row for padding."""

    def __init__(self, rows, capacity, fixed=False):
        self.rows, self.cells, self.fixed = rows, capacity, fixed
        self.slots = rows * (capacity + 1)

    def slot(self, row, cell):
        return row * (self.cells + 1) + cell

    def span(self, last):
        return self.cells if self.fixed else min(last, self.cells)

    def reserve(self, row, first, last):
        if last > self.cells:
            raise ValueError(f"row {row}: tokens up to {last} do not fit into {self.cells} cells")

    def view(self, x, rows, end):
        return x.view(self.rows, self.cells + 1, *x.shape[1:])[rows, :end]

    def cell(self, index):
        return index

    def trim(self, row, end):
        pass

    def copy(self, src, dst, cache):
        cells = torch.arange(self.span(max(cache.top[s] for s in src)))
        cache.move(self.slot(torch.tensor(src)[:, None], cells).flatten(), self.slot(torch.tensor(dst)[:, None], cells).flatten())


TINY = ModelConfig(vocab_size=11, d_model=4, n_layers=1, n_heads=1, n_kv_heads=1, d_head=2, d_ff=4)


def cached(slab):
    """A cache on a slab, if that is one."""
    if not isinstance(slab.slots, int):
        raise TypeError(f"self.slots should say how many slots there are in all, a whole number; it is {slab.slots!r}")
    return Cache(TINY, slab)


def transcript(cache, *passes):
    """What comes back of each pass, of a cache in which each key is 100 · (row + 1) + its position and each padding 7.

    A pass is [B, T] positions. The first rectangle's keys are read, as the model's attention would read them: positions, then numbers.
    """
    told = []
    for positions in map(torch.tensor, passes):
        flight = cache.stage(positions)
        numbers = torch.where(positions >= 0, 100 * torch.arange(1, len(positions) + 1)[:, None] + positions, 7)
        key = flight.pack(numbers).float()[:, None, None].expand(-1, 1, 2)
        back = flight.write(0, (key, key))
        cache.keep((positions >= 0).sum(1).tolist())
        told += [
            {"positions": r.keys, "keys": keys[..., 0, 0].clone()} for r, (keys, _) in zip(flight.rectangles, back)
        ]  # the next pass writes there
    return told


@slab.trial("one row that grows to its last cell")
def _(Slab):
    return transcript(cached(Slab(1, 5)), [[0, 1, 2]], [[3]], [[4]])


@slab.trial("two rows, of which the first is padded in the second pass")
def _(Slab):
    return transcript(cached(Slab(2, 8)), [[0, 1, 2], [0, 1, 2]], [[3, 4, 5, -1], [3, 4, 5, 6]], [[6], [7]])


@slab.trial("three rows, read one by one")
def _(Slab):
    return transcript(cached(Slab(3, 4)), [[0, -1, -1], [0, 1, 2], [-1, -1, -1]], [[1], [-1], [0]])


@slab.trial("a padded row near its end")
def _(Slab):
    return transcript(cached(Slab(2, 6)), [[0, 1, 2], [0, -1, -1]], [[3, 4, 5, -1], [1, 2, 3, 4]])


@slab.trial("a slab that is always looked at whole")
def _(Slab):
    return transcript(cached(Slab(1, 5, fixed=True)), [[0, 1]], [[2]])


@slab.trial("a row copied over another")
def _(Slab):
    cache = cached(Slab(2, 4))
    first = transcript(cache, [[0, 1], [-1, -1]])
    cache.copy([0], [1])
    return first + transcript(cache, [[2], [2]])


def refused(Slab, *passes):
    """Which of the passes, each into an empty cache of one row with four cells, are refused with a ValueError?"""
    told = []
    for positions in passes:
        try:
            cached(Slab(1, 4)).stage(torch.tensor([positions]))
            told.append("taken")
        except ValueError:
            told.append("refused")
    return told


@slab.trial("four tokens into a row of four cells")
def _(Slab):
    return refused(Slab, [0, 1, 2, 3])


@slab.trial("five tokens into a row of four cells, and six")
def _(Slab):
    return refused(Slab, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5])


@slab.mistake("Rows overlap: the padding of one is written over the first cell of the next. Each row needs one slot more than it has cells.")
class _(Slab):
    def __init__(self, rows, capacity, fixed=False):
        super().__init__(rows, capacity, fixed)
        self.slots = rows * capacity

    def slot(self, row, cell):
        return row * self.cells + cell

    def view(self, x, rows, end):
        return x.view(self.rows, self.cells, *x.shape[1:])[rows, :end]


@slab.mistake("One slot for padding is not enough for all rows, as yours counts: rows × capacity + 1 is short of one for each further row.")
class _(Slab):
    def __init__(self, rows, capacity, fixed=False):
        super().__init__(rows, capacity, fixed)
        self.slots = rows * capacity + 1


@slab.mistake("self.slots is rows × capacity: each row has one cell more, after the others, for padding.")
class _(Slab):
    def __init__(self, rows, capacity, fixed=False):
        super().__init__(rows, capacity, fixed)
        self.slots = rows * capacity


@slab.mistake("view gives all rows. Only those in `rows` are asked for.")
class _(Slab):
    def view(self, x, rows, end):
        return x.view(self.rows, self.cells + 1, *x.shape[1:])[:, :end]


@slab.mistake("span gives one cell too many: the tokens below position `last` lie in the cells 0 to last - 1.")
class _(Slab):
    def span(self, last):
        return self.cells if self.fixed else min(last + 1, self.cells)


@slab.mistake("view gives all cells of a row, and the padding's with them. Only the first `end` are asked for.")
class _(Slab):
    def view(self, x, rows, end):
        return x.view(self.rows, self.cells + 1, *x.shape[1:])[rows]


@slab.mistake("view gives one cell too many: `:end` ends before `end`.")
class _(Slab):
    def view(self, x, rows, end):
        return x.view(self.rows, self.cells + 1, *x.shape[1:])[rows, : end + 1]


@slab.mistake("slot and view disagree: slot goes through the rows cell by cell, but view takes the cells of a row to lie side by side.")
class _(Slab):
    def slot(self, row, cell):
        return cell * self.rows + row


@slab.mistake("A row that would be exactly full is refused: last = capacity still fits.")
class _(Slab):
    def reserve(self, row, first, last):
        if last >= self.cells:
            raise ValueError("full")


@slab.mistake("One token too many is taken: it would be written into the padding's cell. There is room for last = capacity, and no further.")
class _(Slab):
    def reserve(self, row, first, last):
        if last > self.cells + 1:
            raise ValueError("full")


@slab.mistake("A row that is full takes more: reserve has to *raise* a ValueError (returning or printing something stops nobody).")
class _(Slab):
    def reserve(self, row, first, last):
        return last <= self.cells


@slab.mistake("span does not look at `fixed`: a fixed slab always shows all its cells.")
class _(Slab):
    def span(self, last):
        return min(last, self.cells)


@slab.mistake("span is larger than a row where `last` is: then the padding's cell is looked at.")
class _(Slab):
    def span(self, last):
        return self.cells if self.fixed else last


@slab.mistake("span always gives all cells. That is right, but a short text in a long row would be as dear as a full one: give no more than needed.")
class _(Slab):
    def span(self, last):
        return self.cells


# 03.5 --------------------------------------------------------------------------------------------------------------

felt = exercise(
    "03.5",
    "ttft_tpot",
    task="From the passes of a run, say how long its reader waited for the first token, and how long for each one after it.",
    difficulty=2,
    minutes=6,
    hints=(
        "Go through the passes with a clock that adds up their seconds, and note its time at the first pass that wrote something, and at the last.",
        "ttft is the clock at the first pass that wrote. tpot is (the clock at the end - ttft) ÷ (tokens written after that first pass).",
    ),
    explanation="The reader does not see passes but tokens. What goes by before the first of them is TTFT, however many chunks the prompt came in; "
    "the rest of the time is shared by the tokens that came after it, of which there are n - 1 where a pass writes one. A mean that includes the "
    "first token mixes two things that are bought separately: TTFT is mostly arithmetic, TPOT mostly reading.",
)


@felt.solution
def ttft_tpot(passes):
    """(TTFT, TPOT) of a run, both in seconds: time to first token, and time per output token after it.

    passes: a list of (seconds, tokens written) in their order. A long prompt comes in chunks, and a chunk that is not the last writes 0 tokens.
    At least two passes write something; a pass that writes at all may write several (units 14 and 15), but the first writes one.

    [(3, 0), (2, 1), (1, 1), (1, 1)] -> (5, 1.0)
    """
    clock, ttft, after = 0, None, 0
    for seconds, tokens in passes:
        clock += seconds
        if ttft is not None:
            after += tokens
        elif tokens:
            ttft = clock
    return ttft, (clock - ttft) / after


@felt.trial("a prompt in one pass, three tokens after the first")
def _(ttft_tpot):
    return ttft_tpot([(0.5, 1), (0.125, 1), (0.125, 1), (0.25, 1)])


@felt.trial("a prompt in three chunks")
def _(ttft_tpot):
    return ttft_tpot([(0.5, 0), (0.5, 0), (0.25, 1), (0.125, 1), (0.25, 1)])


@felt.trial("passes that write several tokens")
def _(ttft_tpot):
    return ttft_tpot([(1.0, 1), (0.25, 3), (0.25, 2)])


@felt.mistake("The first token is in your TPOT. It has its own name: count what comes after it, time and tokens.")
def _(passes):
    seconds, tokens = zip(*passes)
    return ttft_tpot(passes)[0], sum(seconds) / sum(tokens)


@felt.mistake("The time after the first token is right, but it is shared by the tokens after it: one less than there are.")
def _(passes):
    ttft, _ = ttft_tpot(passes)
    return ttft, (sum(s for s, _ in passes) - ttft) / sum(n for _, n in passes)


@felt.mistake("Chunks of the prompt that write nothing are waited for, too: add them to TTFT.")
def _(passes):
    seconds = next(s for s, n in passes if n)
    return seconds, ttft_tpot(passes)[1]


@felt.mistake("The first pass is not always the one that writes the first token: a long prompt comes in chunks.")
def _(passes):
    first, rest = passes[0][0], passes[1:]
    return first, sum(s for s, _ in rest) / sum(n for _, n in rest)


@felt.mistake("You divided by passes. A pass may write several tokens.")
def _(passes):
    ttft, _ = ttft_tpot(passes)
    return ttft, (sum(s for s, _ in passes) - ttft) / (sum(1 for _, n in passes if n) - 1)


@felt.mistake("TPOT is a time for one token: divide the time after the first by the number of tokens after it.")
def _(passes):
    ttft, _ = ttft_tpot(passes)
    return ttft, sum(s for s, _ in passes) - ttft


@felt.mistake("That is tokens per second. TPOT is the other way round, seconds per token.")
def _(passes):
    ttft, tpot = ttft_tpot(passes)
    return ttft, 1 / tpot
