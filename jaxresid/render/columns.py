"""Figures of one column in one unit, so that they can be compared at a glance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a column: `MiB`, what one is worth, and how many decimals tell figures apart."""

    name: str
    worth: int
    decimals: int

    def text(self, value: int) -> str:
        """`14.12`; nothing is `0`, and something too small to show is `<0.01`."""
        shown = f"{value / self.worth:.{self.decimals}f}"
        if value == 0 or float(shown):
            return shown if value else "0"
        least = f"{10**-self.decimals:.{self.decimals}f}"
        return f"<{least}" if value > 0 else f">-{least}"


def bytes_unit(values: Iterable[int]) -> Unit:
    """The binary unit of the biggest of some bytes."""
    return _unit(values, _BINARY, 1024)


def flops_unit(values: Iterable[int]) -> Unit:
    """The decimal unit of the biggest of some FLOPs."""
    return _unit(values, _DECIMAL, 1000)


def _unit(values: Iterable[int], names: tuple[str, ...], base: int) -> Unit:
    biggest = max((abs(v) for v in values), default=0)
    power = 0
    while power + 1 < len(names) and biggest >= base ** (power + 1):
        power += 1
    worth = base**power
    return Unit(names[power], worth, 0 if power == 0 else 3 if biggest < 10 * worth else 2)
