"""What samples come to: a row for each job and lane, ratios formed within a round, and two runs beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

LEAST, MOST = 0.85, 1.15  # predicted ÷ measured: as near as is asked for
UNSTEADY = 2  # times the fastest round: where the slowest takes longer, something else was running


class Sample(NamedTuple):
    """One lane's turn at a job: seconds of the passes that count, and bytes per second that memory gave before and after."""

    job: str
    lane: str
    round: int
    seconds: list[float]
    roof: tuple[float, float]
    tokens: int  # of a pass
    bytes: float  # that a pass must read and write
    flops: float
    shape: tuple[int, int, int] = (0, 0, 0)  # rows, tokens of each, context
    forward: Sequence[float] = ()  # of each pass, the seconds that its forward took, where the engine tells


def pace(sample: Sample) -> float:
    """Seconds of a token."""
    return median(sample.seconds) / sample.tokens


def table(samples: Iterable[Sample]) -> list[dict]:
    """One row for each job and lane: median seconds of a pass, their range over rounds, the share of the roof, the host's share of a pass, and how
    often as fast as each peer with weights as wide.

    >>> slow, fast = (Sample("decode", n, 0, [t, t], (4e9, 4e9), 1, 2e9, 0.0) for n, t in (("plain 16 bit", 2.0), ("tiled 16 bit", 1.0)))
    >>> row = table([slow, fast])[1]
    >>> row["seconds"], row["mbu"], row["faster"]["plain"]["median"]
    (1.0, 0.5, 2.0)
    """
    samples, rows = list(samples), []
    for job, lane in dict.fromkeys((s.job, s.lane) for s in samples):
        turns = {s.round: s for s in samples if (s.job, s.lane) == (job, lane)}
        took, (name, weights), faster = {r: median(s.seconds) for r, s in turns.items()}, lane.split(" ", 1), {}
        for other in dict.fromkeys(s.lane for s in samples if s.job == job and s.lane != lane and s.lane.endswith(f" {weights}")):
            theirs = {s.round: pace(s) for s in samples if (s.job, s.lane) == (job, other)}
            if ratios := sorted(theirs[r] / pace(turns[r]) for r in theirs if r in turns):
                faster[other.split(" ", 1)[0]] = {"median": median(ratios), "low": ratios[0], "high": ratios[-1]}
        rows.append(
            {
                "job": job,
                "engine": name,
                "weights": weights,
                "seconds": median(took.values()),
                "low": min(took.values()),
                "high": max(took.values()),
                "pace": median(pace(s) for s in turns.values()),
                "roof": median(median(s.roof) for s in turns.values()),
                "mbu": median(s.bytes / took[r] / median(s.roof) for r, s in turns.items()),
                "flops": median(s.flops / took[r] for r, s in turns.items()),
                "host": median(host) if (host := [1 - sum(s.forward) / sum(s.seconds) for s in turns.values() if s.forward]) else None,
                "faster": faster,
            }
        )
    return rows


def text(found: dict) -> str:
    """The figures of a bench as text."""
    lines = [f"{'':16}{'':22}{'ms/pass':>9}{'range':>16}{'tokens/s':>10}{'roof GB/s':>11}{'of it':>7}{'GFLOP/s':>9}{'host':>6}   times as fast as"]
    for r in found["table"]:
        others = ", ".join(f"{o} {q['median']:.2f} ({q['low']:.2f}–{q['high']:.2f})" for o, q in r["faster"].items())
        span, lane = f"{1e3 * r['low']:.2f}–{1e3 * r['high']:.2f}", f"{r['engine']} {r['weights']}"
        speed = f"{1e3 * r['seconds']:9.2f}{span:>16}{1 / r['pace']:10.1f}{r['roof'] / 1e9:11.1f}{r['mbu']:7.0%}{r['flops'] / 1e9:9.1f}"
        speed += f"{'':6}" if r["host"] is None else f"{r['host']:6.1%}"
        lines.append(f"{r['job']:16}{lane:22}{speed}   {others}".rstrip())
    if runs := found.get("start", {}).get("runs"):
        first = {k: median(r[k] for r in runs) for k in runs[0]}
        peak = f", peak memory {first['peak'] / 1e9:.2f} GB" if first["peak"] else ""
        lines.append(f"import {first['import']:.2f} s beyond torch; load in {found['start']['dtype']} {first['load']:.2f} s{peak}")
    lines += told(found.get("steps", {}))
    for weights, q in found.get("quality", {}).items():
        loss, change = f"loss {q['loss']:.4f} nats a token", f"{q['loss'] - q['exact']:+.4f}"
        lines.append(f"{weights}: the likeliest token is that of float32 in {q['agree']:.2%} of {q['tokens']} places; {loss} ({change})")
    unsteady = [f"{r['job']} {r['engine']} {r['weights']}" for r in found["table"] if r["high"] > UNSTEADY * r["low"]]
    if unsteady:
        lines.append(f"the rounds of {', '.join(unsteady)} differ by more than {UNSTEADY} times: another program was busy, so believe no ratio here")
    return "\n".join(lines + found["notes"])


def told(steps: dict) -> list[str]:
    """How well seconds of passes can be told beforehand, for each lane."""
    lines = []
    for lane, q in steps.items():
        ratios = sorted(r for _, r in q["ratios"])
        inside = sum(LEAST <= r <= MOST for r in ratios) / len(ratios)
        spread = f"median {median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}"
        lines.append(
            f"{lane}: fitted to {q['fitted']} passes, the step-time model tells {inside:.0%} of {len(ratios)} others "
            f"within {LEAST}–{MOST} (predicted ÷ measured: {spread})"
        )
    return lines


def compare(old: dict, new: dict) -> str:
    """Two runs beside each other. Seconds of different minutes cannot be compared, so it is shares of the roof and ratios to peers that are."""
    was = {(r["job"], r["engine"], r["weights"]): r for r in old["table"]}
    lines = [f"{'':16}{'':22}{'ms/pass':>18}{'share of the roof':>20}   times as fast as"]
    for r in new["table"]:
        if (before := was.pop((r["job"], r["engine"], r["weights"]), None)) is None:
            lines.append(f"{r['job']:16}{r['engine']} {r['weights']}: new")
            continue
        took = f"{1e3 * before['seconds']:.2f} → {1e3 * r['seconds']:.2f}"
        share = f"{before['mbu']:.0%} → {r['mbu']:.0%}"
        shared = [name for name in r["faster"] if name in before["faster"]]
        others = ", ".join(f"{n} {before['faster'][n]['median']:.2f} → {r['faster'][n]['median']:.2f}{apart(before, r, n)}" for n in shared)
        lane = f"{r['engine']} {r['weights']}"
        lines.append(f"{r['job']:16}{lane:22}{took:>18}{share:>20}   {others}".rstrip())
    lines += [f"{job:16}{engine} {weights}: gone" for job, engine, weights in was]
    if old["machine"]["name"] != new["machine"]["name"]:
        lines.append(f"measured on {old['machine']['name']} and {new['machine']['name']}: only ratios within a run mean anything")
    return "\n".join(lines)


def apart(before: dict, now: dict, name: str) -> str:
    """Marks a ratio all of whose rounds lie on one side of all of the other run's."""
    a, b = before["faster"][name], now["faster"][name]
    return " *" if b["low"] > a["high"] or b["high"] < a["low"] else ""
