"""Slips that a hand could make, each of which some test must notice. `python tests/mutants.py` tries them on a copy, as test_mutants.py does.

When the code moves on and an old text no longer occurs, rewrite the mutant; do not delete it.
"""

from __future__ import annotations

import _thread
import contextlib
import io
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PATIENCE = 60  # seconds


class Mutant(NamedTuple):
    what: str
    file: str  # under src/tokenpace
    old: str  # occurs once
    new: str
    tests: str  # file, and what of it (-k): enough to kill it, and quick


CACHE, STAGE = "cache/protocol.py", "test_cache.py: any_pieces or history"
MUTANTS = [
    # attention
    Mutant("the window is one too wide", "model/attention.py", "gap.abs() < window", "gap.abs() <= window", "test_model.py: written_out"),
    Mutant(
        "a token does not see itself", "model/attention.py", "seen = gap >= 0 if causal", "seen = gap > 0 if causal", "test_model.py: written_out"
    ),
    Mutant(
        "the mask is flipped",
        "model/attention.py",
        "gap = r.queries[:, :, None] - r.keys[:, None, :]",
        "gap = r.keys[:, None, :] - r.queries[:, :, None]",
        "test_model.py: written_out",
    ),
    Mutant("a sink too few", "model/attention.py", "(r.keys < sinks)", "(r.keys < sinks - 1)", "test_model.py: written_out"),
    Mutant("empty cells are seen", "model/attention.py", "seen = seen & (r.keys >= 0)[:, None, :]", "seen = seen", "test_model.py: written_out"),
    Mutant("padding sees nothing: NaN", "model/attention.py", "return seen | (r.queries < 0)[:, :, None]", "return seen", "test_model.py: b3_n2"),
    Mutant(
        "a tree's branches see each other", "model/attention.py", "    if r.among is not None:", "    if False:", "test_cache.py: tree_is_its_paths"
    ),
    Mutant(
        "KV heads are tiled, not grouped",
        "model/attention.py",
        "q = q.unflatten(2, (k.shape[2], -1))",
        "q = q.unflatten(2, (-1, k.shape[2])).transpose(2, 3)",
        "test_model.py: fused_attention",
    ),
    Mutant(
        "scores are not scaled",
        "model/attention.py",
        'scores = torch.einsum("btghd,bsgd->bghts", q, k) * q.shape[-1] ** -0.5',
        'scores = torch.einsum("btghd,bsgd->bghts", q, k)',
        "test_model.py: fused_attention",
    ),
    Mutant("rotary pairs are neighbours", "model/attention.py", "x.roll(x.shape[-1] // 2, -1)", "x.roll(1, -1)", "test_model.py: rope_turns"),
    Mutant(
        "llama3 scaling stretches everything",
        "model/attention.py",
        "return f * keep + f / s.factor * (1 - keep)",
        "return f / s.factor",
        "test_model.py: closed_form",
    ),
    Mutant(
        "angles follow the dtype",
        "model/transformer.py",
        "attention.frequencies(self.config).to(self.norm.weight.device)",
        "attention.frequencies(self.config).to(self.norm.weight)",
        "test_model.py: n1_angles",
    ),
    Mutant(
        "q/k norm forgets k",
        "model/transformer.py",
        "self.k_norm(heads[:, h : h + g])",
        "heads[:, h : h + g]",
        "test_model.py: forward_is_the_oracle",
    ),
    Mutant(
        "values are rotated too",
        "model/transformer.py",
        "q, k, v = turned[:, :h], turned[:, h:], heads[:, h + g :]",
        "q, k, v = turned[:, :h], turned[:, h:], attention.rope(heads[:, h + g :], *turns)",
        "test_model.py: forward_is_the_oracle",
    ),
    # cache
    Mutant(
        "a rejected token stays",
        CACHE,
        "torch.arange(t) >= torch.tensor(counts)[:, None]",
        "torch.arange(t) > torch.tensor(counts)[:, None]",
        "test_cache.py: rollback or rejected",
    ),
    Mutant("one kept token too few", CACHE, "self.top[row] = at + k", "self.top[row] = at + max(k - 1, 0)", "test_cache.py: rollback or tree"),
    Mutant(
        "a path is not moved into place",
        CACHE,
        "        if path is not None:\n            self.follow(counts, path)\n",
        "",
        "test_cache.py: tree_is_its_paths",
    ),
    Mutant("a moved path keeps its old positions", CACHE, "self.table[row, dst] = self.table[row, src]", "pass", "test_cache.py: tree_is_its_paths"),
    Mutant("copying a row forgets its positions", CACHE, "        self.table[dst] = self.table[src]\n", "", "test_cache.py: copying"),
    Mutant(
        "rows are copied one over the other",
        CACHE,
        "zip(dst, [self.top[s] for s in src])",
        "((d, self.top[s]) for d, s in zip(dst, src))",
        "test_cache.py: copying or history",
    ),
    Mutant("a released row is not emptied", CACHE, "        self.table[row] = -1\n", "", "test_cache.py: copying or used_cache"),
    Mutant(
        "what was saved is shared, not copied",
        CACHE,
        "self.table[row].clone(), self.top[row]",
        "self.table[row], self.top[row]",
        "test_cache.py: saved_stays or history",
    ),
    Mutant(
        "room is checked a token late",
        "cache/slab.py",
        "if last > self.cells:",
        "if last > self.cells + 1:",
        "test_cache.py: refused or staging_too_much",
    ),
    Mutant(
        "a pass does not see its last key",
        CACHE,
        "self.where.span(max(self.first[r] + hi if causal",
        "self.where.span(max(self.first[r] + hi - 1 if causal",
        STAGE,
    ),
    Mutant(
        "ragged rows are put together in the wrong order",
        CACHE,
        "place[self.order] = torch.arange(len(self.order), device=flat.device)",
        "place[self.order] = torch.arange(len(self.order), device=flat.device).flip(0)",
        "test_contract.py: order_and_copies",
    ),
    # driver
    Mutant(
        "logits are read a token early",
        "run.py",
        "width + n - job.ask.read + i",
        "width + n - job.ask.read + i - 1",
        "test_contract.py: matrix and gqa and 512 and growing",
    ),
    Mutant(
        "a chunk takes what is read with it",
        "run.py",
        "min(self.ask.sure, self.ask.width - self.ask.read)",
        "self.ask.sure",
        "test_contract.py: matrix and gqa and growing and (1- or 3-)",
    ),
    Mutant(
        "a request that ends keeps its slots",
        "run.py",
        "        for job in over:\n            self.release(job)\n",
        "        for job in over:\n            self.jobs.remove(job)\n",
        "test_contract.py: order_and_copies",
    ),
    Mutant(
        "closing forgets the caches",
        "run.py",
        "            for job in [*self.jobs]:\n                self.release(job)\n",
        "",
        "test_contract.py: closing",
    ),
    Mutant(
        "branches that are dropped stay",
        "run.py",
        "                for slot in gone:\n                    each.release(slot)\n",
        "",
        "test_contract.py: pruned",
    ),
    Mutant("forks are not copied", "run.py", "each.copy(src, dst)", "pass", "test_contract.py: matrix and gqa and 512 and (beam or parallel)"),
    Mutant(
        "a failing decoder takes all with it",
        "run.py",
        "        except Exception as error:  # a decoder that fails ends its own request and nobody else's\n            job.request.error = error\n",
        "        except ZeroDivisionError as error:\n            job.request.error = error\n",
        "test_bad_decoders.py: bad_keep",
    ),
    Mutant(
        "penalties forget what was cached in chunks",
        "run.py",
        "tokens[ask.at + lo :] = [fresh[lo + i] for i in stay]",
        "tokens[ask.at :] = [fresh[lo + i] for i in stay]",
        "test_contract.py: penalties_see",
    ),
    Mutant(
        "penalties forget what is cached",
        "decode/outcome.py",
        "for t in (*known, *tokens[:cut])",
        "for t in tokens[:cut]",
        "test_contract.py: penalties_are_the_same",
    ),
    Mutant(
        "log-probabilities of the filtered law",
        "decode/outcome.py",
        "x = self.logits[those].float()",
        "x = self.probs[those].log()",
        "test_contract.py: logprobs",
    ),
    # sampling
    Mutant("top-p drops the token that crosses", "decode/sampling.py", "within = (mass - top <", "within = (mass <", "test_sampling.py: c1_"),
    Mutant("penalties divide negative logits", "decode/sampling.py", "torch.where(x > 0, x / r, x * r)", "x / r", "test_sampling.py: c3_"),
    Mutant(
        "the penalty counts twice",
        "decode/outcome.py",
        "before += [(group, t) for t in (*known, *tokens[:cut])]",
        "before += [(group, t) for t in (*known, *known, *tokens[:cut])]",
        "test_sampling.py: c4_",
    ),
    Mutant(
        "later drafts do not see earlier ones",
        "decode/outcome.py",
        "for t in tokens[cut : cut + i]]",
        "for t in tokens[cut : cut + i - 1]]",
        "test_sampling.py: c4_",
    ),
    Mutant(
        "min-p is absolute", "decode/sampling.py", "w < least * w.amax(-1, keepdim=True)", "w < least", "test_sampling.py: each_setting and min-p"
    ),
    Mutant(
        "forbidden only at the position itself",
        "decode/sampling.py",
        "if until is None or at < until",
        "if until is None or at == until",
        "test_contract.py: least_number",
    ),
    Mutant("noise forgets its purpose", "decode/sampling.py", " + purpose * 1609587929392839161", "", "test_sampling.py: noise or place"),
    Mutant(
        "noise forgets the branch", "decode/sampling.py", " + branch * 6364136223846793005", "", "test_sampling.py: written_out_hash or two_places"
    ),
    Mutant(
        "the seed is read at another position",
        "decode/protocol.py",
        '+ (self.phase != "refine")',
        '+ 2 * (self.phase != "refine")',
        "test_sampling.py: place_reaches",
    ),
    Mutant(
        "draft and verdict share their noise",
        "decode/outcome.py",
        "position[:, :k], ACCEPT)",
        "position[:, :k], DRAW)",
        "test_sampling.py: place_reaches",
    ),
    Mutant(
        "the residual is drawn with the acceptance's noise",
        "decode/outcome.py",
        "noise(seed, branch, position, RESIDUAL)",
        "noise(seed, branch, position, ACCEPT)",
        "test_sampling.py: place_reaches",
    ),
    Mutant(
        "u = 0 draws what has no probability",
        "decode/sampling.py",
        ".clamp(min=torch.finfo(p.dtype).tiny)",
        ".clamp(min=0.0)",
        "test_sampling.py: draws_nothing_at_zero or c6_no_number_draws",
    ),
    Mutant("NaN goes on", "decode/outcome.py", "        if worst == 1:", "        if worst == 3:", "test_sampling.py: c8_"),
    # verify and speculation
    Mutant(
        "the residual is p",
        "decode/sampling.py",
        "rest = (target - torch.cat([q, nothing], 1)[row, count]).clamp(min=0)",
        "rest = target",
        "test_lossless.py: verify_follows",
    ),
    Mutant(
        "the residual is |p - q|",
        "decode/sampling.py",
        "[row, count]).clamp(min=0)  # what",
        "[row, count]).abs()  # what",
        "test_lossless.py: verify_follows",
    ),
    Mutant(
        "the ratio is upside down",
        "decode/sampling.py",
        "(u * chance(q) <= chance(p))",
        "(u * chance(p) <= chance(q))",
        "test_lossless.py: verify_follows",
    ),
    Mutant(
        "acceptance goes on after a rejection",
        "decode/sampling.py",
        "right.int().cumprod(1).sum(1)",
        "right.int().sum(1)",
        "test_lossless.py: verify_follows",
    ),
    Mutant(
        "the first guess is not checked",
        "decode/sampling.py",
        "    count, row = right.int()",
        "    right[:, :1] = draft[:, :1] >= 0\n    count, row = right.int()",
        "test_contract.py: wrong_draft_of_one",
    ),
    Mutant(
        "the last guess of a right draft is thrown away",
        "decode/speculative.py",
        "Keep(len(fresh) + count,",
        "Keep(len(fresh) + max(count - 1, 0),",
        "test_contract.py: matrix and gqa and 512 and draft-same",
    ),
    Mutant(
        "a draft cache is one token short for ever",
        "decode/drafters.py",
        "known = at if draft else known",
        "known = at + 1 if draft else known",
        "test_contract.py: perfect_drafter or depend_on_their_cache",
    ),
    Mutant(
        "guesses go beyond the limit",
        "decode/speculative.py",
        "max(end - len(tokens) - 1, 0)",
        "10**6",
        "test_contract.py: stays_under or perfect_drafter",
    ),
    Mutant(
        "the draft's q is thought one-hot",
        "decode/drafters.py",
        'return draft, torch.cat(q) if q else "one-hot"',
        'return draft, "one-hot"',
        "test_lossless.py: closed_form",
    ),
    # stopping, refinement, cost
    Mutant(
        "the limit counts one more", "stop.py", "self.next - self.start >= self.limit", "self.next - self.start > self.limit", "test_stop.py: limit"
    ),
    Mutant(
        "a string's start is shown", "stop.py", "hold = 0 if end or self.found else", "hold = 0 if True else", "test_stop.py: near_miss or any_split"
    ),
    Mutant("an open block is judged", "stop.py", "(settled is None or self.next < settled)", "True", "test_stop.py: may_change"),
    Mutant(
        "a text begins where it was first written",
        "stop.py",
        " and (settled is None or min(self.tokens) < settled)",
        "",
        "test_stop.py: out_of_order or taken_back",
    ),
    Mutant(
        "the mask itself is drawn", "decode/refine.py", "    sampler = unmasked(sampler, mask)\n", "", "test_lossless.py: product_of_the_marginals"
    ),
    Mutant(
        "the order is by confidence",
        "decode/refine.py",
        "[place for _, place in sorted(zip(order, places))]",
        "confident(places, confidence, seed)",
        "test_lossless.py: order_is_random",
    ),
    Mutant(
        "a finished block is not written for the next",
        "decode/refine.py",
        "if after or at + len(x) < end:",
        "if after:",
        "test_contract.py: matrix and gqa and blocks and 512",
    ),
    Mutant(
        "a beam's parents are mixed up", "decode/beam.py", "tuple(parents))", "tuple(sorted(parents)))", "test_contract.py: matrix and beam and 512"
    ),
    Mutant(
        "keys are cached, values are not counted",
        "config.py",
        "return ((self.n_kv_heads, self.d_head),) * 2",
        "return ((self.n_kv_heads, self.d_head),)",
        "test_cost.py: known_numbers",
    ),
    Mutant(
        "drawing is counted",
        "measure/clock.py",
        "        yield Stamped(step, seconds)\n        sync()\n        start = now()\n",
        "        start = now()\n        yield Stamped(step, seconds)\n        sync()\n",
        "test_cost.py: drawing",
    ),
    Mutant(
        "the clock is read before the device is done",
        "measure/clock.py",
        "    for step in steps:\n        sync()\n        seconds",
        "    for step in steps:\n        seconds",
        "test_cost.py: queued or m1_",
    ),
    # exercises
    Mutant(
        "an endless loop is stopped once only",
        "patience.py",
        "            told, left = told + 1, 1.0",
        "            return",
        "test_checking.py: swallows",
    ),
    Mutant(
        "what stops a loop is an Exception",
        "patience.py",
        "class TooLong(BaseException)",
        "class TooLong(Exception)",
        "test_checking.py: never_ends_with",
    ),
    Mutant(
        "changed inputs go unseen",
        "checking.py",
        "late.append(look) if inspect.isgenerator(result) else look()",
        "late.append(look) if inspect.isgenerator(result) else None",
        "test_checking.py: named",
    ),
    Mutant("a generator is watched at its start only", "checking.py", "late.append(look) if", "None if", "test_checking.py: to_its_end"),
    Mutant("NaN equals everything", "comparing.py", "        if bool(nan.any()):", "        if False:", "test_checking.py: told"),
    Mutant("any dtype will do", "comparing.py", "    if got.dtype != want.dtype:", "    if False:", "test_checking.py: told"),
    Mutant("megabytes are kept", "checking.py", "text[: max(QUIET - self.tell(), 0)]", "text", "test_checking.py: kept_short"),
    Mutant("a cut line swallows the next", "answers.py", "if file.tell() and not _ends_well():", "if False:", "test_answers.py: cut_off"),
    Mutant("damaged answers are thrown away", "answers.py", "aside.write_bytes(whole)", "pass", "test_answers.py: damaged"),
    Mutant("what was forgotten comes back", "answers.py", "if value is not None}", "}", "test_answers.py: forgotten"),
    # claims
    Mutant("a moved roof is judged", "claims/runs.py", 'verdict(shown.band, "", like)', '""', "test_judges.py: shows_nothing"),
    Mutant("a recording is kept as this machine's", "claims/__init__.py", "if not recorded and", "if", "test_claims.py: recording_is_not"),
    Mutant("another machine's verdict is ours", "claims/__init__.py", "and at in here]", "]", "test_claims.py: another_machine"),
    Mutant("a wrong law is let through", "claims/unit02.py", "distance <= most and", "True and", "test_judges.py: another_law"),
    # unit 00
    Mutant("a new answer overwrites the last", "show/odometer.py", "setdefault(row.request, {})", "setdefault(0, {})", "test_odometer.py: new_page"),
    Mutant("lost samples are not missed", "measure/samples.py", 'if lines[-1]["end"] != len(lines) - 2:', "if False:", "test_samples.py: refused"),
    Mutant(
        "products are judged by a moved roof",
        "show/roofline.py",
        "verdict(self._stood(known['bandwidth']), ",
        "verdict(None, ",
        "test_roofline.py: judges_no",
    ),
    Mutant("any read is as large as the first", "measure/reading.py", "if size not in made:", "if not made:", "test_reading.py: as_many"),
    # unit 02
    Mutant(
        "parts count what is inside them", "measure/parts.py", "taken[name] += took - inside", "taken[name] += took", "test_anatomy.py: own_modules"
    ),
    Mutant("watches stay on", "measure/parts.py", "            hook.remove()", "            pass", "test_anatomy.py: only_while"),
    Mutant("the longest time of a part", "show/anatomy.py", "{part: median(", "{part: max(", "test_anatomy.py: medians"),
    Mutant("norms are not idle", "show/anatomy.py", " or little(self.counted[part])]", "]", "test_anatomy.py: hardly"),
    Mutant("a law forgets its temperature", "show/distribution.py", "[sampler])[0]", "[Sampler(1.0)])[0]", "test_anatomy.py: by_hand"),
    Mutant(
        "sliders call while they move", "show/controls.py", "description=name, continuous_update=False", "description=name", "test_anatomy.py: let_go"
    ),
    # passes over tiles
    Mutant("an early exit goes through all layers", "model/blocks.py", "self.begin[:exit_at]", "self.begin", "test_kernels.py: exit"),
    Mutant("weights that were exchanged are still read", "model/blocks.py", "    blocks.look()", "    pass", "test_kernels.py: changed_after"),
    Mutant(
        "weights that moved are still read", "model/blocks.py", "if self.stood !=", "if False and self.stood !=", "test_kernels.py: changed_after"
    ),
    Mutant("any cache will do", "model/blocks.py", "or not slab.fits(self[0].attention, len(self))", "", "test_kernels.py: another_model"),
    Mutant("a block that is gone still runs", "model/blocks.py", "a is b and not", "not", "test_kernels.py: changed_after"),
    Mutant(
        "the last tile has ids of its own", "model/products.py", "high >= self.tiles.rows", "high >= self.tiles.height", "test_kernels.py: unchanged"
    ),
    Mutant("e to the x is off by a hundredth", "model/jit.py", "F32(1 / 24)", "F32(1 / 12)", "test_kernels.py: e_to_the"),
    Mutant("bfloat16 is cut off", "model/jit.py", "build.add(even, INT32(0x7FFF))", "INT32(0)", "test_kernels.py: nearest"),
    Mutant(
        "the second token adds to the first one's sums", "model/lanes.py", "token(build, n, i), k), TILE)", "n, k), TILE)", "test_kernels.py: float64"
    ),
    Mutant("up is gate", "model/gemv.py", "half + t, a, groups", "t, a, groups", "test_kernels.py: feed_forward"),
    Mutant(
        "a group's lowest value is forgotten", "model/formats.py", "plus(sums, rows(low[g]), groups[1], n, g)", "sums", "test_kernels.py: codes_are"
    ),
    Mutant("halves of a byte are exchanged", "weights/codes.py", "lower | upper << 4", "upper | lower << 4", "test_quantize.py: pack"),
    Mutant("codes count around 7", "weights/codes.py", "whole = whole - 8", "whole = whole - 7", "test_quantize.py: q4_0"),
    Mutant("codes are cut off", "weights/codes.py", "w / scale, 0.0).round()", "w / scale, 0.0).trunc()", "test_quantize.py: half_a_step"),
    Mutant(
        "quantised twice", "model/quantize.py", "if any(isinstance(m, Codes) for m in model.modules()):", "if False:", "test_quantize.py: refused"
    ),
    Mutant(
        "half a model is quantised",
        "model/quantize.py",
        "            made[name] = codes",
        "            made[name] = setattr(module, 'weight', None) or codes",
        "test_quantize.py: refused",
    ),
    # what is said of a measurement
    Mutant("unlike passes have a share of the bandwidth", "measure/ledger.py", "LIKE = 2 ", "LIKE = 200 ", "test_ledger.py: unlike"),
    Mutant("rounding explains any two texts", "show/cache.py", "tie = abs(p - q) <= 2 * rounding", "tie = True", "test_cache_views.py: rounding"),
    Mutant("no pass is ever slowed", "show/cache.py", "> len(passes) / 10", "> len(passes)", "test_cache_views.py: slowed"),
    Mutant("the prompt is one of the widths", "show/widths.py", 'if row.phase != "prefill":', "if True:", "test_cache_views.py: warm_up"),
    Mutant(
        "a core that is missed is no reason to doubt",
        "measure/intervention.py",
        "if roof < STOLEN or compute >= CONTROL * roof:",
        "if roof < STOLEN:",
        "test_intervention.py: slowdowns_say",
    ),
    Mutant(
        "a thief steals on after an error",
        "measure/intervention.py",
        "            finally:\n                if thief:\n                    thief.wait()\n            yield",
        "            finally:\n                pass\n            yield",
        "test_intervention.py: rests_when",
    ),
    # joules and prices
    Mutant(
        "a counter that starts again gives energy back",
        "measure/counters.py",
        "(self.range if now < self.last else 0)",
        "0",
        "test_energy.py: starts",
    ),
    Mutant(
        "the whole platform is a package, too", "measure/counters.py", 'startswith("package")', 'startswith("p")', "test_energy.py: counted_twice"
    ),
    Mutant(
        "drawing takes joules",
        "measure/energy.py",
        "before = counter.joules() if now() - paused > counter.step else after",
        "before = after",
        "test_energy.py: no_pause",
    ),
    Mutant(
        "a coarse counter begins anew with each pass",
        "measure/energy.py",
        "if now() - paused > counter.step else after",
        "",
        "test_energy.py: loses_nothing",
    ),
    Mutant("a kilowatt-hour is a watt-hour", "measure/price.py", "joules / 3.6e6", "joules / 3.6e3", "test_price.py: kilowatt"),
    Mutant(
        "a pass that some have left counts as shared", "measure/price.py", "len(there) >= rows and", "there and", "test_price.py: all_texts_share"
    ),
    Mutant(
        "joules that nobody counted are none",
        "measure/ledger.py",
        "None if None in energy else sum(energy)",
        "sum(e or 0 for e in energy)",
        "test_ledger.py: joules",
    ),
    Mutant(
        "joules that were not counted bear out a price", "claims/unit07.py", "    if not counted:\n", "    if False:\n", "test_power.py: test_price"
    ),
    Mutant("an interrupt is for the thief too", "measure/thief.py", '{"start_new_session": True}', "{}", "test_thief.py: alone"),
]


def stale() -> list[str]:
    """Mutants whose old text does not occur exactly once any more."""
    return [m.what for m in MUTANTS if (ROOT / "src" / "tokenpace" / m.file).read_text().count(m.old) != 1]


def copy(to: Path) -> Path:
    for name in ("src", "tests", "course"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "browser", "results"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def killed(m: Mutant | None, tests: str = "") -> tuple[bool, str]:
    """Whether the tests fail, and what they said. In a process of its own, which has loaded torch but nothing of the package."""
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        at, said = copy(Path(folder)), io.StringIO()
        if m:
            file = at / "src" / "tokenpace" / m.file
            file.write_text(file.read_text().replace(m.old, m.new))
        name, chosen = (m.tests if m else tests).split(": ")
        os.chdir(at)
        late = []
        signal.signal(signal.SIGALRM, lambda *_: late.append(1) or _thread.interrupt_main())  # a slip that loops for ever is noticed too
        signal.setitimer(signal.ITIMER_REAL, PATIENCE if m else 10 * PATIENCE, 5)  # and again: some code under test swallows the first
        sys.path[:0] = [str(at / "src"), str(at / "tests")]
        os.environ["PYTHONPATH"] = str(at / "src")  # for the processes that a test starts
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = pytest.main(
                ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", f"tests/{name}", "-k", chosen]
            )
        return bool(late) or status in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED), said.getvalue()[-1500:]


def everything(workers: int = 2) -> dict[str, tuple[bool, str]]:
    """what -> (killed, what the tests said). And first, without a mutant, every choice of tests must pass, or a kill would mean nothing."""
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    import torch.utils.flop_counter

    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    choices: dict[str, set] = {}
    for m in MUTANTS:
        name, chosen = m.tests.split(": ")
        choices.setdefault(name, set()).add(f"({chosen})")
    sound = [(None, f"{name}: {' or '.join(sorted(chosen))}") for name, chosen in choices.items()]
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=1) as pool:
        answers = pool.starmap(killed, sound + [(m,) for m in MUTANTS], chunksize=1)
    names = [f"nothing changed, {tests.split(':')[0]}" for _, tests in sound] + [m.what for m in MUTANTS]
    return dict(zip(names, answers))


if __name__ == "__main__":
    import json

    answers = everything()
    if "--json" in sys.argv:
        print(json.dumps(answers))
    else:
        for what, (dead, said) in answers.items():
            print("killed  " if dead else "SURVIVED", what)
