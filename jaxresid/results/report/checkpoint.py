"""Checkpoints with their verdicts, and findings."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.values import Location, Source


class Verdict(enum.StrEnum):
    """The verdict on a checkpoint: whether it saves memory, and if not, why."""

    EARNS = "earns-its-keep"
    SAVES_NOTHING = "saves-nothing"
    COSTS_MEMORY = "costs-memory"
    UNDONE = "undone-by-xla"
    OVERRIDDEN = "overridden"
    MATCHED_NOTHING = "matched-nothing"
    NOT_JUDGED = "not-judged"


@dataclass(frozen=True, slots=True, repr=False)
class CompiledChange(Shown):
    """What a compiler says of the change that a finding proposes, with the change really made.

    Attributes:
      on: the place that it compiles for.
      verdict: `confirmed` where its peak falls by as much as a finding has to be worth, and to what
        it says to fit, `refuted` where it does not, and `unconfirmed` where that is not known.
      peak_before_nbytes: its peak of the program as it is; None where there is none.
      peak_nbytes: its peak of the program with the change; None where there is none.
      reason: why it is unconfirmed, or refuted although the peak falls; else ''.
    """

    on: str
    verdict: OneOf["confirmed", "refuted", "unconfirmed"]
    peak_before_nbytes: int | None = None
    peak_nbytes: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Finding(Shown):
    """Something that only a trace can tell.

    Attributes:
      name: the name of the rule that it is a case of, as in `jaxresid rules`.
      message: one or two sentences with the figures, without the remedy.
      source: where it is, in the user's code and in a library's.
      help: the remedy.
      measured: the figures, by name; bytes in keys that end in `nbytes`.
      compiled: what a compiler says of the change that it proposes; None where none was asked.
    """

    name: str
    message: str
    source: Source
    help: str = ""
    measured: Mapping[str, object] = field(default_factory=dict, hash=False)
    compiled: CompiledChange | None = None

    @property
    def location(self) -> Location | None:
        """The user's line; None where none is known."""
        return self.source.location


@dataclass(frozen=True, slots=True, repr=False)
class EstimatedVerdict(Shown):
    """The verdict that the estimate gives a checkpoint on which a compiler's verdict is known.

    Attributes:
      verdict: the verdict.
      reason: the reason for it, one sentence.
      peak_nbytes: the estimated peak of the whole program, in bytes.
      peak_without_nbytes: the same without the checkpoint.
      ratio: estimated peak bytes saved per residual byte dropped; None where no residual is
        dropped.
    """

    verdict: Verdict
    reason: str
    peak_nbytes: int
    peak_without_nbytes: int
    ratio: float | None


@dataclass(frozen=True, slots=True, repr=False)
class Checkpoint(Shown):
    """One checkpoint in source, with its verdict.

    The verdict compares the program with it to the program without this one checkpoint.

    Attributes:
      function: the module or function that is checkpointed, `Block` or `layer`.
      source: the line that calls it, and the module; the same line in a loop is one checkpoint.
      policy: the policy as a user writes it, `dots_saveable`; None: nothing is saveable.
      prevent_cse: whether it prevents common subexpression elimination.
      calls: how many times the program holds it, unrolled.
      trips: how often it runs, all calls and loops together.
      kept_nbytes: bytes of computed residuals of the whole program, in device memory.
      kept_without_nbytes: the same without the checkpoint; None where it is not known.
      recompute_flops: FLOPs that it adds; None where they are not known.
      recompute_fraction: these as a share of the program without it; None where they are not known.
      peak_nbytes: the peak of the whole program, in bytes; None where it is not known.
      peak_without_nbytes: the same without the checkpoint; None where it is not known.
      ratio: peak bytes saved per residual byte dropped; None where no residual is dropped.
      verdict: the verdict.
      reason: the reason for the verdict, one sentence.
      shape: where it is in the program, if that is known: `whole`, `last-stage`, `around-loop`,
        `trivial`, `nested`; None for none of these.
      findings: the findings about it.
      uncosted: primitives that no cost rule covers.
      defined: where the module's method or the function is defined; None where it is not known.
      by: whose peaks, and so whose verdict, these are: `estimate` or `xla`.
      estimated: what the estimate says, where the verdict is XLA's; None where there is none.
      unconfirmed: why the verdict is not XLA's although XLA was to be asked; '' otherwise.
    """

    function: str
    source: Source
    policy: str | None
    prevent_cse: bool
    calls: int
    trips: int
    kept_nbytes: int
    kept_without_nbytes: int | None
    recompute_flops: int | None
    recompute_fraction: float | None
    peak_nbytes: int | None
    peak_without_nbytes: int | None
    ratio: float | None
    verdict: Verdict
    reason: str
    shape: str | None = None
    findings: tuple[Finding, ...] = ()
    uncosted: tuple[str, ...] = ()
    defined: Location | None = None
    by: OneOf["estimate", "xla"] = "estimate"
    estimated: EstimatedVerdict | None = None
    unconfirmed: str = ""

    @property
    def location(self) -> Location | None:
        """The user's line; None where none is known."""
        return self.source.location

    @property
    def dropped_nbytes(self) -> int | None:
        """Residual bytes in device memory that it drops; None where that is not known."""
        if self.kept_without_nbytes is None:
            return None
        return self.kept_without_nbytes - self.kept_nbytes

    @property
    def saved_nbytes(self) -> int | None:
        """Bytes that the peak falls by, negative where it rises; None where they are not known."""
        if self.peak_nbytes is None or self.peak_without_nbytes is None:
            return None
        return self.peak_without_nbytes - self.peak_nbytes

    @property
    def saved_per_gflop(self) -> float | None:
        """Bytes of peak saved per 10^9 recomputed FLOPs; None where nothing is recomputed."""
        if self.saved_nbytes is None or not self.recompute_flops:
            return None
        return self.saved_nbytes / (self.recompute_flops / 1e9)
