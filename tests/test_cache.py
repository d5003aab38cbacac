"""What is cached is what recomputing would give, whatever was staged, kept, taken back, copied, saved and loaded before. CASES 1.1 and 1.6."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loud import ATTENTION, GQA, PROMPT, lanes, loud, oracle, serve, text

from tokenpace.cache.protocol import Cache, NoCache, Raw, alike
from tokenpace.cache.slab import Slab
from tokenpace.decode.autoregressive import autoregressive
from tokenpace.decode.drafters import small
from tokenpace.decode.speculative import speculative
from tokenpace.run import Request, run

TOKENS = [5, 9, 5, 9, 2, 7, 5, 9, 1, 3, 5, 40, 12, 33, 8, 21, 50, 17, 4, 4]


def cache(rows=1, capacity=64, fixed=False, config=GQA) -> Cache:
    return Cache(config, Slab(rows, capacity, fixed))


def positions(*rows: tuple[int, int], width: int | None = None) -> torch.Tensor:
    """[B, T] of (first, how many) for each row, padded with -1."""
    width = width or max(n for _, n in rows)
    return torch.tensor([[*range(at, at + n), *[-1] * (width - n)] for at, n in rows])


def feed(model, c, tokens: list[int], at: int = 0, stay: int | None = None) -> torch.Tensor:
    """Logits [T, V] of tokens staged from `at` on, of which `stay` (default: all) are kept."""
    logits = model(torch.tensor([tokens]), c.stage(positions((at, len(tokens)))))[0]
    c.keep([len(tokens) if stay is None else stay])
    return logits


def near(a, b):
    torch.testing.assert_close(a.double(), b.double(), atol=2e-4, rtol=2e-4)


def bits(c: Cache) -> list[torch.Tensor]:
    """All that a cache can be seen to hold: positions, and keys and values where there is one."""
    held = c.table[:, : c.where.cells] >= 0
    return [c.table[:, : c.where.cells], *(c.where.view(p, slice(None), c.where.cells)[held] for layer in c.layers for parts in layer for p in parts)]


def same(a: Cache, b: Cache) -> bool:
    return a.top == b.top and all(torch.equal(x, y) for x, y in zip(bits(a), bits(b), strict=True))


# Pieces


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("pieces", [[5, 4], [7, 9], [1] * 20, [3, 17], [8, 8, 4], [20], [19, 1]], ids=str)
def test_any_pieces_are_one_pass(kind, fixed, pieces):
    """CASES A1, A2, A5, A10, A13: also where a piece is longer than the window."""
    model, c, at, got = loud(kind), cache(fixed=fixed, config=ATTENTION[kind]), 0, []
    for n in pieces:
        got.append(feed(model, c, TOKENS[at : at + n], at))
        at += n
        assert c.top == [at]
    near(torch.cat(got), oracle(kind).plain.logits(TOKENS[:at]))


def test_the_future_is_not_seen():
    """CASES A3: another last token changes no earlier logit by one bit, with a cache and without."""
    model = loud()
    for c in (cache, NoCache):
        a, b = (model(torch.tensor([t]), c().stage(positions((0, 9))))[0] for t in (TOKENS[:9], [*TOKENS[:8], 55]))
        assert torch.equal(a[:8], b[:8]) and not torch.equal(a[8], b[8])


def test_what_is_staged_is_where_it_was_staged():
    """CASES A4, A5: the numbers themselves, since rotary positions hide a constant shift."""
    c, model = cache(rows=2), loud()
    flight = c.stage(positions((0, 6), (0, 4)))
    assert flight.queries.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, -1, -1]]
    model(torch.zeros(2, 6, dtype=torch.long), flight)
    c.keep([6, 4])
    flight = c.stage(positions((6, 1), (4, 1)))
    assert flight.queries.tolist() == [[6], [4]] and flight.rectangles[0].keys.tolist() == [[*range(7)], [*range(5), -1, -1]]
    assert c.table[:, :8].tolist() == [[*range(7), -1], [*range(5), -1, -1, -1]]


def test_the_window_counts_the_token_itself():
    """CASES A12, A13: W = 4 with 2 sinks at position 19 sees {0, 1, 16, 17, 18, 19}. Any other token may change without a trace."""
    config = replace(GQA, n_layers=1, window=4, sinks=2)
    model = loud(config)
    read = lambda tokens: model(torch.tensor([tokens]), cache(config=config).stage(positions((0, 20))))[0, 19]
    seen = [i for i in range(20) if not torch.equal(read(TOKENS), read([*TOKENS[:i], TOKENS[i] ^ 1, *TOKENS[i + 1 :]]))]
    assert seen == [0, 1, 16, 17, 18, 19]


# Taking back


@pytest.mark.parametrize("rejected", [0, 1, 3, 5])
def test_rollback_leaves_no_trace(rejected):
    """A cache after a draft was refused is the cache that never saw it, bit for bit."""
    model, drafted, never = loud(), cache(), cache()
    for c in (drafted, never):
        feed(model, c, TOKENS[:8])
    feed(model, drafted, TOKENS[8:13], 8, stay=5 - rejected)
    feed(model, never, TOKENS[8:13], 8)
    feed(model, never, [30, 31, 32, 33, 34], 8)  # an index staged again is replaced
    feed(model, never, TOKENS[8:13], 8, stay=5 - rejected)
    assert same(drafted, never) and drafted.top == [13 - rejected]
    assert drafted.table[0, :20].tolist() == [*range(13 - rejected), *[-1] * (7 + rejected)]
    near(feed(model, drafted, [42], 13 - rejected)[0], oracle().last([*TOKENS[: 13 - rejected], 42]))


def test_rejected_tokens_are_not_seen_by_a_model_that_sees_ahead():
    """With a two-way model what is left behind a rollback would show, having no later position to hide behind."""
    config = replace(GQA, causal=False)
    model, c = loud(config), cache(config=config)
    feed(model, c, TOKENS[:9], stay=5)
    again = feed(model, c, TOKENS[:5])
    near(again, oracle(config).plain.logits(TOKENS[:5]))


def test_cropping_to_nothing():
    """CASES A7."""
    model, c = loud(), cache()
    feed(model, c, TOKENS[:3], stay=0)
    assert same(c, cache()) and c.top == [0]
    near(feed(model, c, TOKENS[4:9])[-1], oracle().last(TOKENS[4:9]))


def test_every_layer_shrinks_alike():
    """CASES A17: of a keep, only positions are gone; no layer holds a token that another does not."""
    model, c = loud(), cache()
    feed(model, c, TOKENS[:8], stay=5)
    for layer in c.layers:
        assert [tuple(p.shape) for parts in layer for p in parts] == [(65, 2, 8)] * 2
        for parts in layer:
            assert bool((parts[0][:5].abs().amax((1, 2)) > 0).all())
    assert [len(x) for x in bits(c)[1:]] == [5] * 4


def test_staging_again_replaces():
    model, c = loud(), cache()
    feed(model, c, TOKENS[:10])
    near(feed(model, c, [50, 51], 4), oracle().plain.logits([*TOKENS[:4], 50, 51])[4:])
    assert c.top == [10]  # what lies behind is stale but there; whoever goes on from 6 replaces it in turn
    near(feed(model, c, [52], 6)[0], oracle().last([*TOKENS[:4], 50, 51, 52]))


# Trees

TREE = [-1, -1, 0, 0, 3]  # the node before each: root → {0, 1}, 0 → {2, 3}, 3 → 4


def stage_tree(c, at: list[int], parents=TREE):
    see, depth = torch.zeros(len(parents), len(parents), dtype=torch.bool), []
    for i, p in enumerate(parents):
        see[i] = see[p] if p >= 0 else False
        see[i, i] = True
        depth.append(depth[p] + 1 if p >= 0 else 0)
    where = torch.tensor([[a + d for d in depth] if a >= 0 else [-1] * len(depth) for a in at])
    return c.stage(where, see.expand(len(at), -1, -1))


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("kind", ["gqa", "window", "sinks"])
def test_a_tree_is_its_paths(kind, fixed):
    """CASES D12: every node's logits are those of its own path, and after a path was kept the cache is that of the accepted text."""
    model, c, nodes = loud(kind), cache(fixed=fixed, config=ATTENTION[kind]), [40, 41, 42, 43, 44]
    feed(model, c, TOKENS[:9])
    got = model(torch.tensor([nodes]), stage_tree(c, [9]))[0]
    for node, path in enumerate([[0], [1], [0, 2], [0, 3], [0, 3, 4]]):
        near(got[node], oracle(kind).last([*TOKENS[:9], *(nodes[i] for i in path)]))
    c.keep([3], torch.tensor([[0, 3, 4]]))
    assert c.top == [12] and c.table[0, :14].tolist() == [*range(12), -1, -1]
    near(feed(model, c, [7], 12)[0], oracle(kind).last([*TOKENS[:9], 40, 43, 44, 7]))
    straight = cache(fixed=fixed, config=ATTENTION[kind])
    feed(model, straight, [*TOKENS[:9], 40, 43, 44, 7])
    for a, b in zip(bits(c), bits(straight), strict=True):
        near(a, b)


def test_paths_of_rows_may_differ_in_length():
    model, c, nodes = loud(), cache(rows=3), [40, 41, 42, 43, 44]
    model(torch.tensor([TOKENS[:9]] * 3), c.stage(positions((0, 9), (0, 5), (0, 7))))
    c.keep([9, 5, 7])
    model(torch.tensor([nodes] * 3), stage_tree(c, [9, 5, -1]))
    c.keep([2, 1, 0], torch.tensor([[0, 2], [1, 0], [0, 0]]))
    assert c.top == [11, 6, 7]
    got = model(torch.tensor([[7], [8], [9]]), c.stage(positions((11, 1), (6, 1), (7, 1))))[:, 0]
    for row, want in enumerate(([*TOKENS[:9], 40, 42, 7], [*TOKENS[:5], 41, 8], [*TOKENS[:7], 9])):
        near(got[row], oracle().last(want))


def test_a_tree_without_branches_is_a_chain():
    model, a, b = loud(), cache(), cache()
    for c in (a, b):
        feed(model, c, TOKENS[:6])
    chain = model(torch.tensor([TOKENS[6:10]]), stage_tree(a, [6], [-1, 0, 1, 2]))
    near(chain, model(torch.tensor([TOKENS[6:10]]), b.stage(positions((6, 4)))))


# Rows


def test_capacity_and_poison_change_nothing():
    """What no token was written to is never read: with garbage everywhere, and with more room, the same bits."""
    model = loud()
    clean, poisoned, roomy = cache(), cache(), cache(capacity=200)
    for parts in (parts for layer in poisoned.layers for parts in layer):
        parts[0].fill_(1e4)
    for c in (clean, poisoned, roomy):
        feed(model, c, TOKENS[:9], stay=7)
    a, b, d = (feed(model, c, [3, 4], 7) for c in (clean, poisoned, roomy))
    assert torch.equal(a, b) and torch.equal(a, d)
    a, b = (feed(model, c, TOKENS[:9]) for c in (cache(fixed=True), cache(capacity=200, fixed=True)))
    near(a, b)


def test_a_used_cache_is_as_good_as_new():
    """CASES A15."""
    for fixed in (False, True):
        used = lanes(fixed=fixed)
        serve(used, [Request(autoregressive(TOKENS), 10)])
        assert text(serve(used, [Request(autoregressive(PROMPT), 10)])) == oracle().greedy(PROMPT, 10)


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
def test_copying_saving_and_loading_rows(fixed):
    model, c = loud(), cache(rows=4, fixed=fixed)
    model(torch.tensor([TOKENS[:9], TOKENS[5:14], [0] * 9, [0] * 9]), c.stage(positions((0, 9), (0, 6), (0, 0), (0, 2), width=9)))
    c.keep([9, 6, 0, 2])
    saved = c.save(0)
    c.copy([0, 1], [1, 2])  # both at once: row 2 becomes what row 1 was
    assert c.top == [9, 9, 6, 2]
    c.release(0)
    c.release(3)
    assert c.top == [0, 9, 6, 0] and c.table[[0, 3]].eq(-1).all()
    c.load(3, saved)
    got = model(torch.tensor([[1], [2], [3], [4]]), c.stage(positions((0, 1), (9, 1), (6, 1), (9, 1))))[:, 0]
    for row, want in enumerate(([1], [*TOKENS[:9], 2], [*TOKENS[5:11], 3], [*TOKENS[:9], 4])):
        near(got[row], oracle().last(want))


def test_what_was_saved_stays_as_it_was():
    model, c = loud(), cache()
    feed(model, c, TOKENS[:9])
    saved = c.save(0)
    feed(model, c, [1, 2, 3], 3)
    c.release(0)
    c.load(0, saved)
    near(feed(model, c, [7], 9)[0], oracle().last([*TOKENS[:9], 7]))


def test_a_saved_row_that_does_not_fit():
    model, big, tight = loud(), cache(capacity=40), cache(capacity=8)
    feed(model, big, TOKENS[:9])
    with pytest.raises(ValueError, match="do not fit"):
        tight.load(0, big.save(0))
    assert same(tight, cache(capacity=8))


# Any history: the cache beside a plain list of tokens for each row

ROWS, ROOM = 3, 14
token = st.integers(0, 60)
actions = st.one_of(
    st.tuples(st.just("feed"), st.lists(st.tuples(st.lists(token, max_size=5), st.integers(0, 3), st.integers(0, 5)), min_size=ROWS, max_size=ROWS)),
    st.tuples(st.just("copy"), st.permutations(range(ROWS)), st.integers(1, ROWS)),
    st.tuples(st.just("save"), st.integers(0, ROWS - 1)),
    st.tuples(st.just("load"), st.integers(0, ROWS - 1)),
    st.tuples(st.just("release"), st.integers(0, ROWS - 1)),
)


def fed(model, c, rows: list[list[int]], each) -> None:
    """Every row steps back a little and goes on with new tokens, of which some stay; all their logits are looked at."""
    at = [max(len(row) - back, 0) for row, (_, back, _) in zip(rows, each)]
    fresh = [tokens[: ROOM - a] for a, (tokens, _, _) in zip(at, each)]
    if not any(fresh):
        return
    width = max(map(len, fresh))
    tokens = torch.tensor([t + [0] * (width - len(t)) for t in fresh])
    got = model(tokens, c.stage(positions(*((a, len(t)) for a, t in zip(at, fresh)), width=width)))
    stay = [min(keep, len(t)) for t, (_, _, keep) in zip(fresh, each)]
    c.keep(stay)
    for i, row in enumerate(rows):
        if fresh[i]:
            near(got[i, : len(fresh[i])], oracle().plain.logits(row[: at[i]] + fresh[i])[at[i] :])
            row[at[i] :] = fresh[i][: stay[i]]


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(history=st.lists(actions, min_size=1, max_size=10))
def test_any_history(fixed, history):
    model, c, rows, saved = loud(), cache(ROWS, ROOM, fixed), [[] for _ in range(ROWS)], None
    for what, *how in history:
        if what == "feed":
            fed(model, c, rows, *how)
        elif what == "copy":
            dst, n = how
            src = [*dst[1:], dst[0]][:n]
            c.copy(src, dst[:n])
            for d, tokens in zip(dst, [[*rows[s]] for s in src]):
                rows[d] = tokens
        elif what == "save":
            saved = c.save(how[0]), [*rows[how[0]]]
        elif what == "load" and saved:
            c.load(how[0], saved[0])
            rows[how[0]] = [*saved[1]]
        elif what == "release":
            c.release(how[0])
            rows[how[0]] = []
    for i, row in enumerate(rows):  # whatever came before, each row still goes on from what it holds
        assert set(range(len(row))) <= set(c.table[i].tolist()) and c.top[i] >= len(row)
    fed(model, c, rows, [([7], 0, 1)] * ROWS)


# Room


@pytest.mark.parametrize("prompt, n", [(16, 1), (14, 3), (15, 2), (1, 16)])
def test_what_fits_fits_exactly(prompt, n):
    """CASES F1: the last token needs no cell, since nobody reads on from it."""
    steps = serve(lanes(capacity=16), [Request(autoregressive(TOKENS[:prompt]), n)])
    assert text(steps, TOKENS[:prompt]) == oracle().greedy(TOKENS[:prompt], n)
    assert steps[-1].rows[0].finish == "length"


@pytest.mark.parametrize("prompt, n, written", [(17, 1, 0), (14, 5, 3), (16, 2, 1)])
def test_what_does_not_fit_is_refused_before_it_is_written(prompt, n, written):
    served, asked = lanes(capacity=16), Request(autoregressive(TOKENS[:prompt]), n)
    steps = serve(served, [asked])
    assert steps[-1].rows[0].finish == "error" and "do not fit into a cache of 16" in str(asked.error)
    assert text(steps, TOKENS[:prompt]) == oracle().greedy(TOKENS[:prompt], written)
    assert not bool(served["target"][1].layers[0][0][0][16].any())  # the cell behind the last was never written


def test_speculation_drafts_no_further_than_there_is_room():
    """CASES F1: K = 4, a prompt of 14 and 3 new tokens in a cache of 16."""
    served = lanes(capacity=16, draft=loud())
    steps = serve(served, [Request(speculative(TOKENS[:14], small(4), limit=3), 3)])
    assert text(steps, TOKENS[:14]) == oracle().greedy(TOKENS[:14], 3) and steps[-1].rows[0].finish == "length"


def test_staging_too_much_changes_nothing():
    model, c = loud(), cache(rows=2, capacity=8)
    model(torch.tensor([TOKENS[:4]] * 2), c.stage(positions((0, 4), (0, 3), width=4)))
    c.keep([4, 3])
    before = [x.clone() for x in bits(c)], [*c.top]
    with pytest.raises(ValueError, match="row 1: tokens up to 9"):
        c.stage(positions((4, 1), (3, 6), width=6))
    assert c.top == before[1] and all(torch.equal(a, b) for a, b in zip(bits(c), before[0]))
    near(model(torch.tensor([[7], [8]]), c.stage(positions((4, 1), (3, 1))))[1, 0], oracle().last([*TOKENS[:3], 8]))


# Bad input


def test_padding_goes_last():
    """CASES B4: a hole inside a row is refused."""
    for c in (cache(), NoCache()):
        with pytest.raises(ValueError, match="padding.*must follow"):
            c.stage(torch.tensor([[-1, -1, 0, 1]]))


def test_rows_must_be_all_there():
    with pytest.raises(ValueError, match="2 rows staged in a cache of 3"):
        cache(rows=3).stage(positions((0, 1), (0, 1)))


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (-1, 5)])
def test_a_slab_of_nothing(size):
    with pytest.raises(ValueError, match="at least 1"):
        Slab(*size)


# Sizes


def test_bytes_are_what_is_allocated():
    c = Cache(GQA, Slab(3, 50), dtype=torch.bfloat16)
    assert c.bytes == 2 * GQA.n_layers * 2 * 3 * 51 * GQA.n_kv_heads * GQA.d_head
    assert all(p.dtype == torch.bfloat16 for layer in c.layers for parts in layer for p in parts)


def test_no_row_is_padded_to_more_than_twice_its_width():
    width = [*range(40), 100, 600]
    groups = alike(width)
    assert sorted(r for g in groups for r in g) == [r for r, n in enumerate(width) if n]
    assert all(max(width[r] for r in g) <= 2 * width[i] for g in groups for i in g)


class Doubled(Raw):
    """Numbers stored at twice their size: a codec of which a wrong end would be noticed."""

    def put(self, parts, into, x):
        super().put(parts, into, 2 * x)

    def get(self, parts, view):
        return super().get(parts, view) / 2


def test_another_codec_needs_no_other_cache():
    served = {"target": (loud(), Cache(GQA, Slab(2, 64), Doubled()))}
    steps = serve(served, [Request(autoregressive(PROMPT), 10), Request(autoregressive(PROMPT[:4]), 10)], slots=2)
    assert text(steps) == oracle().greedy(PROMPT, 10)


def test_positions_are_asserted_by_a_model_that_knows_where_it_is():
    """Lesson 1 of CASES: rotary positions hide a shift of everything; a model with absolute positions hides nothing."""
    from oracles import Oracle, Plain

    model, table = loud(), torch.randn(256, 32, generator=torch.Generator().manual_seed(3))

    def forward(tokens, flight, read):
        return absolute(model, table)(tokens, flight, read)

    want = Oracle(Plain(dict(model.state_dict()), GQA, table)).greedy(PROMPT, 12)
    assert want != oracle().greedy(PROMPT, 12)
    for budget in (3, 512):
        served = {"target": (forward, Cache(GQA, Slab(2, 64))), "draft": (model, Cache(GQA, Slab(2, 64)))}
        steps = list(
            run(served, [Request(speculative(PROMPT, small(3), limit=12), 12), Request(autoregressive(PROMPT[:4]), 3)], slots=2, budget=budget)
        )
        assert text(steps) == want


def absolute(model, table):
    """The model with a learnt vector for each position added to its embeddings."""

    class Embedding(torch.nn.Module):
        def __init__(self, plain, flight):
            super().__init__()
            self.plain, self.flight, self.weight = plain, flight, plain.weight

        def forward(self, tokens):
            return self.plain(tokens) + table[self.flight.pack(self.flight.queries).clamp(min=0)]

    def forward(tokens, flight, read):
        plain = model.embed
        model.embed = Embedding(plain, flight)
        try:
            return model(tokens, flight, read)
        finally:
            model.embed = plain

    return forward
