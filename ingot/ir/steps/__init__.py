"""The steps that recipes of every target are made of; importing this makes them known."""

from __future__ import annotations

from ingot.ir.steps import lora, movement, numbers, quantize

__all__ = ["lora", "movement", "numbers", "quantize"]
