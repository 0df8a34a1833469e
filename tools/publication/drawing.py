"""SVG of plots: a titled sheet in the reader's light or dark mode, axes, lines, bars and text.

Coordinates are pixels from the upper left corner; in a plot's area they are its own units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720

STYLE = """
.ground { fill: #ffffff; } text { font: 13px sans-serif; fill: #1f2328; }
.small { font-size: 11px; fill: #57606a; } .strong { font-weight: bold; }
.axis { stroke: #57606a; } .grid { stroke: #d8dee4; } .curve { fill: none; stroke-width: 2; }
rect.first { fill: #8c959f; } rect.second { fill: #9ec8ff; } rect.third { fill: #4a90e2; }
rect.fourth { fill: #0b4f9e; } .point { fill: #0969da; }
.curve.alone { stroke: #8c959f; stroke-dasharray: 5 4; } .curve.ours { stroke: #0969da; }
.curve.free { stroke: #cf222e; } .curve.peer { stroke: #bf8700; }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; } text { fill: #e6edf3; } .small { fill: #9198a1; }
.axis { stroke: #9198a1; } .grid { stroke: #30363d; }
rect.first { fill: #656c76; } rect.second { fill: #1f4b80; } rect.third { fill: #3b82d0; }
rect.fourth { fill: #8fc3ff; } .point { fill: #4493f8; }
.curve.alone { stroke: #9198a1; } .curve.ours { stroke: #4493f8; }
.curve.free { stroke: #f85149; } .curve.peer { stroke: #d29922; } }
"""

Point = tuple[float, float]


def sheet(title: str, height: float, parts: Iterable[str]) -> str:
    """Return the whole file: ground, title and ``parts``."""
    size = f'width="{WIDTH}" height="{height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {height:g}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="ground" {size}/>\n'
        + "\n".join([words((16, 24), title, "strong"), *parts])
        + "\n</svg>\n"
    )


def words(at: Point, text: str, kind: str = "", anchor: str = "start") -> str:
    x, y = at
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def bar(at: Point, size: Point, kind: str) -> str:
    (x, y), (width, height) = at, size
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{kind}"/>'
    )


def dot(at: Point, kind: str = "point") -> str:
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4" class="{kind}"/>'


def curve(points: Iterable[Point], kind: str) -> str:
    """Return a line through ``points``."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" class="curve {kind}"/>'


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis with values from ``least`` to ``most`` at the pixels ``begin`` to ``end``."""

    least: float
    most: float
    begin: float
    end: float
    is_logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        least, most = self.least, self.most
        if self.is_logarithmic:
            value, least, most = math.log(value), math.log(least), math.log(most)
        return self.begin + (value - least) / (most - least) * (self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Area:
    """A plot's area between its axes, both with ticks at given values."""

    x: Axis
    y: Axis

    def at(self, x: float, y: float) -> Point:
        return self.x.at(x), self.y.at(y)

    def frame(
        self, x_ticks: Sequence[float], y_ticks: Mapping[float, str], x_label: str, y_label: str
    ) -> list[str]:
        """Return axes, a grid line for each of ``y_ticks``, and labels."""
        found = []
        for value, text in y_ticks.items():
            y = self.y.at(value)
            found.append(_line((self.x.begin, y), (self.x.end, y), "grid"))
            found.append(words((self.x.begin - 8, y + 4), text, "small", "end"))
        for value in x_ticks:
            x, y = self.at(value, self.y.least)
            found.append(_line((x, y), (x, y + 4), "axis"))
            found.append(words((x, y + 17), f"{value:g}", "small", "middle"))
        corner = (self.x.begin, self.y.begin)
        found.append(_line(corner, (self.x.end, self.y.begin), "axis"))
        found.append(_line(corner, (self.x.begin, self.y.end), "axis"))
        found.append(words((self.x.end, self.y.begin + 34), x_label, "small", "end"))
        found.append(words((self.x.begin, self.y.end - 10), y_label, "small"))
        return found


def _line(begin: Point, end: Point, kind: str) -> str:
    (x1, y1), (x2, y2) = begin, end
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def round_ticks(least: float, most: float) -> list[float]:
    """Return ticks between two positive numbers, for logarithms.

    They are 1, 1.5, 2, 3, 5 and 7 times powers of ten.
    """
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    found = [digit * 10.0**power for power in powers for digit in (1, 1.5, 2, 3, 5, 7)]
    return [value for value in found if least <= value <= most]
