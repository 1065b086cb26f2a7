"""halfbyte: fused NVFP4 and MXFP4 mixture-of-experts layers (docs/python.md)."""

from ._library import Error, load_library
from .fused_moe import FusedMoE, Weights

__all__ = ["Error", "FusedMoE", "Weights", "load_library"]
