"""What a plan minimises: recomputed FLOPs, or the estimated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxresid.advice.timing.chips import Chip
from jaxresid.advice.timing.intervals import time_interval
from jaxresid.advice.timing.roofline import Seconds, eqn_seconds, seconds, transfer_seconds
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.cost.jaxpr_cost import Costs
from jaxresid.inspector.program.ops import EXCHANGES
from jaxresid.inspector.variants.choices import Variant
from jaxresid.results import TimeBasis, TimeInterval

# What rounding explains.
_SLOWER = 1.001

# What spares less than this share of the function's cost is not worth an edit.
_WORTH_AN_EDIT = 5e-4


class Objective:
    """The cost of variants of one function.

    Args:
      plain: The variant without any checkpoint.
      chip: The chip whose figures the time is estimated from; None where none are known.
      offload: Whether values may be moved to the host.
      by_time: Whether the estimated time is minimised, in place of the FLOPs.
      passes: How often what is traced runs: once for each microbatch.

    Attributes:
      transfer: The cost of moving bytes to the host and back; None: nothing is offloaded.
      slack: A difference in cost that does not justify an edit.
    """

    def __init__(
        self,
        plain: Variant,
        chip: Chip | None,
        *,
        offload: bool,
        by_time: bool,
        passes: int = 1,
    ) -> None:
        self._plain, self._chip = plain, chip
        self._costs, self._passes = Costs(), passes
        self._times: dict[Variant, Seconds] = {}
        self._plain_seconds = self._seconds(plain)
        self._timed = chip if by_time else None
        self.transfer: Callable[[int], float] | None = None
        if (timed := self._timed) is not None and offload:
            self.transfer = lambda nbytes: 2 * passes * transfer_seconds(nbytes, timed)
        self.slack = _WORTH_AN_EDIT * (self._plain_seconds if by_time else plain.cost.flops)

    def cost(self, variant: Variant) -> float:
        """Return the cost of a variant on top of that without any checkpoint."""
        if self._timed is not None:
            return self._seconds(variant) - self._plain_seconds
        return float(variant.cost.flops - self._plain.cost.flops)

    def of_eqn(self, eqn: Any) -> float:
        """Return the cost of running an eqn once more."""
        if self._timed is not None:
            return self._passes * eqn_seconds(eqn, self._timed)
        return self._passes * self._costs.of_eqn(eqn).flops

    def time_fraction(self, variant: Variant) -> float | None:
        """Return the estimated time of a variant over that without any checkpoint.

        It is a share of the latter; None where no figures of the chip are known.
        """
        if not self._plain_seconds:
            return None
        return (self._seconds(variant) - self._plain_seconds) / self._plain_seconds

    def seconds(self, variant: Variant) -> float | None:
        """Return the estimated time of a variant; None where no figures of the chip are known."""
        return None if self._chip is None else self._seconds(variant)

    def recompute_fraction(self, variant: Variant) -> float:
        """Return the FLOPs that a variant adds as a share of those without any checkpoint."""
        added = max(variant.cost.flops - self._plain.cost.flops, 0)
        return added / self._plain.cost.flops if self._plain.cost.flops else 0.0

    def time_interval(
        self, variant: Variant, basis: TimeBasis | None, *, is_split: bool
    ) -> TimeInterval | None:
        """Return the interval around the ratio of a variant's time to that without any checkpoint.

        It is None where times of such programs were not held against anything.
        """
        if self._chip is None:
            return None
        found, plain = (self._told(v, self._chip) for v in (variant, self._plain))
        return time_interval(found, plain, basis, is_split=is_split)

    def exchanges(self, variant: Variant) -> str | None:
        """Return what the time of a program that is split over devices counts, in words.

        None where devices exchange nothing, or no time is known.
        """
        if self._chip is None:
            return None
        found, chip = self._told(variant, self._chip), self._chip
        if EXCHANGES & set(found.uncosted):
            between = "hosts" if chip.link_rate else "them"
            return (
                "the time does not count all that devices exchange: no rate of the links between"
                f" {between} is known for {chip.title}"
            )
        if not found.collectives or chip.link_rate is None:
            return None
        sent, network = format_bytes(int(found.sent_nbytes)), ""
        if chip.network_rate and found.collectives > _SLOWER * found.sent_nbytes / chip.link_rate:
            network = f", and what goes to other hosts at {_rate(chip.network_rate)}"
        return (
            "the time counts what devices exchange, beside the kernels: each"
            f" sends {sent} at {_rate(chip.link_rate)}{network}. That was not checked on chips, and"
            " XLA may exchange otherwise"
        )

    def _seconds(self, variant: Variant) -> float:
        return self._told(variant, self._chip).total if self._chip else 0.0

    def _told(self, variant: Variant, chip: Chip) -> Seconds:
        """Return the time of a variant, estimated once."""
        if variant not in self._times:
            self._times[variant] = seconds(variant.lowered, chip)
        return self._times[variant]


def _rate(each: float) -> str:
    return f"{each / 1e9:.0f} GB/s"
