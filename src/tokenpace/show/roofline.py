"""Unit 00: what this machine can do, drawn as it is found out (Williams, Waterman and Patterson 2009, roofline).

Three panels from two lanes of samples. The probe's reads show the cache hierarchy; its ceilings make the roof; and matrix-vector
products of growing size, the whole of what a decoder does for a single token, land under it: small ones on the launch
ceiling, those that fit a cache above memory's, large ones on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

from ..measure.roof import Band, Roof, Sample, Task, band, fold
from . import plots
from .live import Shown, verdict, watch
from .plots import BLACK, BLUE, GREEN, GREY, MEASURED, ORANGE, PURPLE, VERMILION, Look

DTYPES = {"float32": Look(BLUE, "o", "-"), "bfloat16": Look(VERMILION, "s", "--"), "float16": Look(GREEN, "^", "-.")}
OPERATIONS = 1  # a product is one launch


@dataclass
class Roofline:
    """A view. Lane "probe": Samples of `probing`; lane "gemv": Samples of the products from `gemvs`. `planned` is how many are expected.

    `guess` is how many bytes a second the learner thinks this machine reads. The band is what memory gave just before and just after.
    """

    machine: dict
    planned: int
    guess: float | None = None  # [B/s]
    where: str = ""
    band: Band | None = None
    samples: list[Sample] = field(default_factory=list)
    products: dict[Task, list[float]] = field(default_factory=dict)
    size = (10.4, 6.0)

    # the fold ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, sample: Sample) -> None:
        if lane == "probe":
            self.samples.append(sample)
        elif not sample.error:
            self.products.setdefault(sample.task, []).append(sample.seconds)

    def judge(self, stood: Band | None) -> None:
        self.band = stood

    def progress(self) -> float:
        return min((len(self.samples) + sum(map(len, self.products.values()))) / self.planned, 1.0)

    @property
    def roof(self) -> Roof:
        return fold(self.machine, self.samples)

    def ceilings(self) -> dict[str, float]:
        """Those that are known so far: launch [s], bandwidth [B/s], and FLOP/s by dtype."""
        roof, found = self.roof, {}
        for name in ("launch", "bandwidth"):
            with suppress(ValueError):  # not probed yet
                found[name] = getattr(roof, name)
        return found | {dtype: roof.flops(dtype) for dtype in DTYPES if any(p.task.dtype == dtype for p in roof.seen("multiply"))}

    def landed(self) -> list[tuple[Task, float]]:
        """Median seconds of each product, smallest first."""
        return sorted(((task, median(s)) for task, s in self.products.items()), key=lambda pair: pair[0].size)

    # the picture ---------------------------------------------------------------------------------------------------

    def axes(self, figure) -> None:
        self.ax = figure.subplot_mosaic([["reads", "roof"], ["products", "products"]], height_ratios=[1, 1.1])
        for ax, x, y in zip(self.ax.values(), ("B", "", "B"), ("B/s", "FLOP/s", "s")):
            plots.logarithmic(ax, x, y)
            ax.grid(visible=True)
        self.ax["reads"].set(title="Reading, by size of the buffer", xlabel="bytes")
        self.ax["roof"].set(title="The roofline", xlabel="FLOP per byte")
        self.ax["products"].set(title="Matrix times vector, by size of the matrix", xlabel="bytes of the matrix")
        figure.supxlabel(self.where, color=GREY, fontsize=plots.points() - 1)

    def draw(self) -> None:
        for ax in self.ax.values():
            for artist in [*ax.lines, *ax.texts, *ax.patches]:
                artist.remove()
        known = self.ceilings()
        self._reads(known)
        self._roof(known)
        self._products(known)

    def _reads(self, known: dict[str, float]) -> None:
        ax, points = self.ax["reads"], self.roof.seen("read")
        for threads, look in zip(sorted({p.task.threads for p in points}, key=lambda t: -(t or 0)), (MEASURED, plots.RIVAL)):
            mine = [p for p in points if p.task.threads == threads]
            name = f"{threads} thread{'s' * (threads > 1)}" if threads else "device"
            ax.plot([p.task.size for p in mine], [p.rate for p in mine], look.marker + look.line, color=look.color, label=name)
        if "bandwidth" in known:
            ax.axhline(known["bandwidth"], color=ORANGE, linestyle="--", label="memory")
        if self.band:
            ax.axhspan(self.band.low, self.band.high, color=ORANGE, alpha=0.25, linewidth=0)
        if self.guess:
            ax.axhline(self.guess, color=BLACK, linestyle="-.", linewidth=1.2, label="your prediction")
        for level, size in self.machine["caches"].items():
            ax.axvline(size, color=GREY, linestyle=":")
            ax.text(size, 0.02, f" {level}", color=GREY, transform=ax.get_xaxis_transform())
        if points:
            ax.legend(loc="upper right")

    def _roof(self, known: dict[str, float]) -> None:
        ax = self.ax["roof"]
        if "bandwidth" not in known:
            return
        for dtype, look in DTYPES.items():
            if dtype in known:
                ridge = known[dtype] / known["bandwidth"]
                xs = [0.05, ridge, max(ridge * 8, 64)]
                ax.plot(
                    xs, [min(x * known["bandwidth"], known[dtype]) for x in xs], look.line, color=look.color, label=f"{dtype}: ridge at {ridge:.2g}"
                )
        for task, took in self.landed():
            look = DTYPES[task.dtype]
            ax.plot(task.work / task.size, task.work / took, look.marker, color=look.color, **_filled(task.means))
        if ax.lines:
            ax.legend(loc="lower right")

    def _products(self, known: dict[str, float]) -> None:
        ax, landed = self.ax["products"], self.landed()
        sizes = [task.size for task, _ in landed] or [1e4, 1e9]
        ends = [min(sizes) / 2, max(sizes) * 2]
        if "launch" in known:
            ax.plot(ends, [OPERATIONS * known["launch"]] * 2, ":", color=PURPLE, label="launch")
        if "bandwidth" in known:
            ax.plot(ends, [size / known["bandwidth"] for size in ends], "--", color=ORANGE, label="bandwidth of memory")
        for dtype in sorted({task.dtype for task, _ in landed} & set(known)):
            per_byte = next(task.work / task.size for task, _ in landed if task.dtype == dtype)
            ax.plot(ends, [size * per_byte / known[dtype] for size in ends], "-.", color=GREY, linewidth=1.5, label=f"compute in {dtype}")
        for (dtype, means), mine in _grouped(landed).items():
            look, label = DTYPES[dtype], f"measured: {means}, {dtype}"
            ax.plot([t.size for t, _ in mine], [s for _, s in mine], look.marker, color=look.color, label=label, **_filled(means))
        if ax.lines:
            ax.legend(loc="lower right", ncols=2)  # below the lines nothing can land

    # the words -----------------------------------------------------------------------------------------------------

    def sentence(self) -> str:
        known, landed = self.ceilings(), self.landed()
        said = f"you said {self.guess / 1e9:.3g}" if self.guess else "no prediction"
        told = [f"memory reads {known['bandwidth'] / 1e9:.0f} GB/s ({said})"] if "bandwidth" in known else []
        told += [f"{dtype} multiplies {known[dtype] / 1e9:,.0f} GFLOP/s" for dtype in DTYPES if dtype in known]
        told += [f"an operation takes {plots.seconds(known['launch'])} to launch"] if "launch" in known else []
        text = f"{self.machine['name']}: {', '.join(told)}." if told else "Nothing is probed yet."
        if landed and "bandwidth" in known:
            text += f" {verdict(self._stood(known['bandwidth']), self._largest(landed, known['bandwidth']))}"
        return text + (f" [{self.where}]" if self.where else "")

    def _stood(self, bandwidth: float) -> Band | None:
        """Where the roof stood before, meanwhile and after."""
        return self.band and band([min(self.band.low, bandwidth)], [max(self.band.high, bandwidth)])

    @staticmethod
    def _largest(landed: list[tuple[Task, float]], bandwidth: float) -> str:
        """How near the largest product of each kind comes to the bandwidth."""
        size = landed[-1][0].size
        rates = [(task, task.size / took) for task, took in landed if task.size == size]
        told = " and ".join(f"by {task.means} {rate / 1e9:.0f} GB/s, {_share(rate / bandwidth)}" for task, rate in rates)
        return f"The largest matrix, {plots.bytes_(size)} of {landed[-1][0].dtype}, is read {told}."


def _filled(means: str) -> dict:
    """Products of the tiled kernel are solid, those of PyTorch's own hollow."""
    return {} if "tiled" in means else {"markerfacecolor": "white"}


def _share(share: float) -> str:
    """More than all there is cannot be read: then the probe's own loop was the slower one."""
    return f"{share:.0%} of that" if share <= 1 else "no less than the probe itself"


def _grouped(landed: list[tuple[Task, float]]) -> dict[tuple[str, str], list]:
    found: dict[tuple[str, str], list] = {}
    for task, took in landed:
        found.setdefault((task.dtype, task.means), []).append((task, took))
    return found


def gemvs(device: str = "cpu", largest: int = 256 << 20) -> list:
    """Products of an n × n matrix with one vector, each n twice the one before: plain and, where they run, with the tiled kernels. For `probing`."""
    import torch
    from torch import nn

    from ..measure.probe import Load
    from ..model.products import TiledLinear

    found, dtype, n = [], torch.bfloat16, 64
    tiled = torch.device(device).type == "cpu"
    while n * n * dtype.itemsize <= largest:
        x = torch.randn(1, n, device=device, dtype=dtype)
        plain = nn.Linear(n, n, bias=False, device=device, dtype=dtype).requires_grad_(False)
        modules = {"F.linear": plain}
        if tiled:
            modules["tiled kernel"] = other = TiledLinear(plain)
            plain.weight = nn.Parameter(other.tiles.numbers.view(n, n), requires_grad=False)  # any numbers will do, so both read the same memory
        for means, module in modules.items():
            task = Task("gemv", n * n * dtype.itemsize, "bfloat16", torch.get_num_threads() if tiled else None, means, 2.0 * n * n)
            found.append(Load(task, lambda times, module=module, x=x: [module(x) for _ in range(times)] and None))
        n *= 2
    return found


def _interrupted() -> Iterator:
    """A lane that was interrupted before its first point."""
    raise KeyboardInterrupt
    yield


def roofline(unit, guess: float | None = None, budget: float | None = None, **shown) -> Shown:
    """Probe this machine, two thirds of the time for its ceilings, and draw what is found as it is found. A dry lesson replays its recording.

    `unit` is an open lesson; `guess` is how many bytes a second the learner thinks are read; `budget` [s] is by default what fits the lesson's
    mode; `shown` goes to `watch` (live, screen).
    """
    budget = budget or unit.size(quick=8, full=16)
    planned = []

    def lanes() -> dict:
        from ..measure.clock import synchronise
        from ..measure.probe import loads, probing

        device = str(unit.lm.device)
        products, probes, sync = gemvs(device), loads(device), synchronise(device)  # tiling needs room, so it comes first
        planned.append(5 * (len(probes) + len(products)))
        return {"probe": probing(probes, budget * 2 / 3, sync), "gemv": probing(products, budget / 3, sync)}

    try:
        found = unit.sample("roof", lanes)
    except KeyboardInterrupt:  # while the matrices were made
        found, planned = {"probe": _interrupted()}, [1]
    view = Roofline(unit.machine, planned[0] if planned else sum(map(len, found.values())), guess, unit.where)
    return watch(view, found, seconds=2 * budget, roof=unit.roof, **shown)
