"""A bar chart as SVG, written by hand: one bar a layer, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

ROW, TOP, LEFT, WIDTH, RIGHT = 20, 64, 260, 420, 280  # pixels
LONGEST = 40  # characters of a name
DECADES = 8  # shown at most, below the largest error
COLOURS = {True: "#2b6cb0", False: "#a0aec0"}


class Bar(NamedTuple):
    """A layer: its error (None: not measured), whether it is int8, what stands behind the bar, and why it is float."""

    name: str
    error: float | None
    int8: bool
    beside: str
    why: str


def chart(title: str, subtitle: str, bars: Sequence[Bar], colours: str = "blue: int8; grey: float") -> str:
    """The SVG's text, with a line below on what the colours mean. The same bars give the same text."""
    errors = [bar.error for bar in bars if bar.error is not None and 0 < bar.error < math.inf]
    high = math.ceil(math.log10(max(errors))) if errors else 0
    low = max(math.floor(math.log10(min(errors))), high - DECADES) if errors else -1
    low = min(low, high - 1)
    width, height = LEFT + WIDTH + RIGHT, TOP + ROW * len(bars) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="16" y="44" fill="#4a5568">{escape(subtitle)}</text>',
    ]
    bottom = TOP + ROW * len(bars)
    for power in range(low, high + 1):
        x = LEFT + WIDTH * (power - low) // (high - low)
        lines.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}" stroke="#e2e8f0"/>')
        lines.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle" fill="#4a5568">1e{power}</text>')
    for i, bar in enumerate(bars):
        lines += _row(bar, TOP + ROW * i, low, high)
    lines.append(f'<text x="16" y="{bottom + 34}" fill="#4a5568">{escape(colours)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _row(bar: Bar, y: int, low: int, high: int) -> list[str]:
    name = bar.name if len(bar.name) <= LONGEST else f"…{bar.name[1 - LONGEST:]}"
    text = f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
    length = 0.0
    if bar.error is not None and bar.error > 0:
        power = min(math.log10(bar.error), high) if math.isfinite(bar.error) else high
        length = max((power - low) / (high - low), 0.005) * WIDTH
    told = f"<title>{escape(bar.why)}</title>" if bar.why else ""
    drawn = f'<rect x="{LEFT}" y="{y + 3}" width="{length:.1f}" height="{ROW - 6}" fill="{COLOURS[bar.int8]}">'
    words = bar.beside if bar.error is not None else f"float: {bar.why}"[:60]
    return [text, f"{drawn}{told}</rect>",
            f'<text x="{LEFT + length + 6:.1f}" y="{y + 14}" fill="#4a5568">{escape(words)}</text>']  # fmt: skip
