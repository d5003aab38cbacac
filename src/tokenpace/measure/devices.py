"""Public devices by their makers' figures, so that a laptop can ask about hardware it does not have.

Peaks are *dense* (no sparsity) and from the data sheet: what no program exceeds, not what one reaches. A dtype that a device does not
multiply at a rate of its own is left out. Data, so another device is another line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..config import nearest

if TYPE_CHECKING:
    from .cost import Device

GiB = 2**30


@dataclass(frozen=True)
class Sheet:
    """bandwidth in bytes per second, flops in FLOP (int8: operations) per second by dtype, memory in bytes, source with year."""

    name: str
    kind: str  # gpu | laptop | phone | cpu
    bandwidth: float
    memory: int
    source: str
    flops: dict[str, float] = field(default_factory=dict)

    def device(self, dtype: str = "bfloat16", launch: float = 0.0) -> Device:
        """This device as `predicted` takes it; `launch` in seconds per pass is not on any data sheet."""
        from .cost import Device

        name = str(dtype).removeprefix("torch.")
        if name not in self.flops:
            raise ValueError(f"{self.name}: no peak for {name} is published{nearest(name, self.flops)}")
        return Device(self.name, bandwidth=self.bandwidth, flops=self.flops[name], launch=launch)


def _sheet(name, kind, gigabytes_per_second, memory, source, **tera):
    """A line of the table in the units that data sheets use: GB/s, GiB, TFLOP/s."""
    dtypes = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
    return Sheet(name, kind, gigabytes_per_second * 1e9, memory * GiB, source, {dtypes[k]: v * 1e12 for k, v in tera.items()})


# The tensor-core figures of GeForce cards are those that accumulate in fp32, as PyTorch does.
_SHEETS = (
    _sheet("NVIDIA B200", "gpu", 8000, 180, "NVIDIA, HGX B200 / Blackwell architecture brief, 2024", fp32=75, bf16=2250, fp16=2250, int8=4500),
    _sheet("NVIDIA H200", "gpu", 4800, 141, "NVIDIA, H200 Tensor Core GPU data sheet (SXM), 2023", fp32=67, bf16=989.5, fp16=989.5, int8=1979),
    _sheet("NVIDIA H100 SXM", "gpu", 3350, 80, "NVIDIA, H100 Tensor Core GPU data sheet (SXM5), 2022", fp32=67, bf16=989.5, fp16=989.5, int8=1979),
    _sheet("NVIDIA A100 80GB", "gpu", 2039, 80, "NVIDIA, A100 80GB data sheet (SXM4), 2021", fp32=19.5, bf16=312, fp16=312, int8=624),
    _sheet("NVIDIA L40S", "gpu", 864, 48, "NVIDIA, L40S data sheet, 2023", fp32=91.6, bf16=362, fp16=362, int8=733),
    _sheet("NVIDIA L4", "gpu", 300, 24, "NVIDIA, L4 Tensor Core GPU data sheet, 2023", fp32=30.3, bf16=121, fp16=121, int8=242),
    _sheet("NVIDIA T4", "gpu", 320, 16, "NVIDIA, T4 product brief, 2019", fp32=8.1, fp16=65, int8=130),
    _sheet("NVIDIA RTX 4090", "gpu", 1008, 24, "NVIDIA, Ada GPU architecture white paper, 2022", fp32=82.6, bf16=165.2, fp16=165.2, int8=660.6),
    _sheet("NVIDIA RTX 3090", "gpu", 936, 24, "NVIDIA, Ampere GA102 GPU architecture white paper, 2020", fp32=35.6, bf16=71, fp16=71, int8=284),
    _sheet("AMD MI300X", "gpu", 5300, 192, "AMD, Instinct MI300X data sheet, 2023", fp32=163.4, bf16=1307.4, fp16=1307.4, int8=2614.9),
    _sheet("Google TPU v5e", "gpu", 819, 16, "Google Cloud, TPU v5e system architecture, 2023", bf16=197, int8=393),
    _sheet("Apple M1", "laptop", 68.25, 16, "Apple, M1 announcement, 2020 (GPU fp32); bandwidth from its LPDDR4X-4266 on 128 bits", fp32=2.6),
    _sheet("Apple M1 Max", "laptop", 400, 64, "Apple, M1 Pro and M1 Max announcement, 2021 (GPU fp32)", fp32=10.4),
    _sheet("Apple M2", "laptop", 100, 24, "Apple, M2 announcement, 2022 (GPU fp32)", fp32=3.6),
    _sheet(
        "Intel Core i9-13900K",
        "cpu",
        89.6,
        128,
        "Intel, product specifications, 2022; FLOP/s: 8 + 16 cores, 5.4 and 4.3 GHz, 32 and 16 a cycle",
        fp32=2.48,
    ),
    _sheet(
        "AMD EPYC 9654",
        "cpu",
        460.8,
        6144,
        "AMD, EPYC 9004 data sheet, 2022; FLOP/s: 96 cores at 2.4 GHz, 32 a cycle, 64 in bf16",
        fp32=7.37,
        bf16=14.7,
    ),
    _sheet(
        "Intel Xeon Platinum 8480+",
        "cpu",
        307.2,
        4096,
        "Intel, product specifications, 2023; FLOP/s: 56 cores at 2.0 GHz, 64 a cycle, 1,024 in bf16 (AMX)",
        fp32=7.17,
        bf16=114.7,
    ),
    _sheet(
        "Raspberry Pi 5",
        "cpu",
        17.1,
        8,
        "Raspberry Pi, product brief, 2023 (LPDDR4X-4267 on 32 bits); FLOP/s: 4 cores at 2.4 GHz, 16 a cycle",
        fp32=0.154,
    ),
    _sheet(
        "Snapdragon 8 Gen 3",
        "phone",
        76.8,
        24,
        "Qualcomm, product brief, 2023 (LPDDR5X-9600 on 64 bits); FLOP/s: 1 and 5 large cores at 3.3 and 3.1 GHz, 32 and 16 a cycle",
        fp32=0.35,
    ),
    _sheet(
        "Snapdragon 8 Gen 2",
        "phone",
        67.2,
        16,
        "Qualcomm, product brief, 2022 (LPDDR5X-8400 on 64 bits); FLOP/s: 1 and 4 large cores at 3.2 and 2.8 GHz, 32 and 16 a cycle",
        fp32=0.28,
    ),
)

DEVICES: dict[str, Sheet] = {sheet.name: sheet for sheet in _SHEETS}


def device(name: str) -> Sheet:
    """The data sheet of a public device.

    >>> device("NVIDIA H100 SXM").bandwidth
    3350000000000.0
    """
    if name not in DEVICES:
        raise ValueError(f"no device is called {name!r}{nearest(name, DEVICES)}")
    return DEVICES[name]


VARIANTS = {"Ti", "SUPER", "Laptop", "Max", "Pro", "Ultra", "Mobile"}  # words that make another product of the same model


def like(driver_name: str) -> Sheet | None:
    """The sheet for what a driver calls its GPU ("NVIDIA H100 80GB HBM3"), or None: what a probe of it may claim.

    Of cards that are sold in two speeds (PCIe and SXM) the table has the faster, so as a bound it is only ever too high.

    >>> like("NVIDIA GeForce RTX 4090").name, like("Tesla T4").name, like("NVIDIA GeForce RTX 4090 Laptop GPU")
    ('NVIDIA RTX 4090', 'NVIDIA T4', None)
    """
    words = set(driver_name.replace("-", " ").split())
    for sheet in _SHEETS:
        model = [word for word in sheet.name.split()[1:] if word not in ("RTX", "TPU")]
        if sheet.kind in ("gpu", "laptop") and model[0] in words and words & VARIANTS == set(model) & VARIANTS:
            return sheet
    return None
