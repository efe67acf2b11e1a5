"""What the figures must reach, and whether they do."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Bar:
    """A claim: the median of `measured`, one figure a round, is at least `least` and at most `most`.

    Without either it is a figure that nothing is asked of.
    """

    claim: str
    measured: Sequence[float]
    least: float = 0.0
    most: float = float("inf")

    @property
    def median(self) -> float:
        """The figure that counts."""
        return statistics.median(self.measured)

    @property
    def held(self) -> bool:
        """Whether the claim is true here and now."""
        return self.least <= self.median <= self.most

    @property
    def asked(self) -> str:
        """The bar as text."""
        sides = [f">= {self.least:g}"] * (self.least > 0.0) + [f"<= {self.most:g}"] * (self.most < float("inf"))
        return ", ".join(sides)


def ratios(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    """Round by round, how many times as much ours is."""
    return [mine / other for mine, other in zip(ours, others, strict=True)]


def table(bars: Sequence[Bar]) -> Table:
    """Each bar, its median and its rounds' extremes."""
    shown = Table("bar", "asked", "median", "rounds", "held", title="Bars: paired medians of this run")
    for bar in bars:
        spread = f"{min(bar.measured):.2f} to {max(bar.measured):.2f}"
        held = ("yes" if bar.held else "NO") if bar.asked else ""
        shown.add_row(bar.claim, bar.asked, f"{bar.median:.2f}", spread, held)
    return shown


def as_json(bars: Sequence[Bar]) -> list[dict[str, object]]:
    """The same for a file."""
    return [
        {"bar": bar.claim, "asked": bar.asked, "median": bar.median, "rounds": list(bar.measured), "held": bar.held}
        for bar in bars
    ]
