"""Where the keys and values of earlier tokens are kept: `stage` the tokens of a pass, `write` what a layer made of them, `keep` those that stay."""

from .protocol import Cache, NoCache, Pass, Raw
from .slab import Slab

__all__ = ["Cache", "NoCache", "Pass", "Raw", "Slab"]
