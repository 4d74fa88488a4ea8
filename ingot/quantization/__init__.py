"""Networks in calibrated INT8: what values their layers see, the scales that follow, and what that costs in accuracy.

    engine = ingot.quantize(net, loader)

The steps, a module each: `data` brings batches from a user, `observers` gather the magnitudes of values in bounded
memory, `ranges` choose scales from them, `sensitivity` measures the error of each layer alone, `mixed` leaves layers
float for the sake of accuracy, and `quantize` puts them together. How int8 stands in a network is said in
passes/calibrated.py.
"""

from __future__ import annotations

from ingot.quantization.quantize import quantize

__all__ = ["quantize"]
