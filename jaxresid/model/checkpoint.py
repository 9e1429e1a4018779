"""What a checkpoint is worth, and what only a trace can tell."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxresid.model.values import Location, Source


class Verdict(enum.StrEnum):
    """What a checkpoint is worth."""

    EARNS = "earns-its-keep"
    SAVES_NOTHING = "saves-nothing"
    COSTS_MEMORY = "costs-memory"
    UNDONE = "undone-by-xla"
    OVERRIDDEN = "overridden"
    MATCHED_NOTHING = "matched-nothing"
    NOT_JUDGED = "not-judged"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that only a trace can tell.

    Attributes:
      name: the name of the rule that it is a case of, as in `jaxresid rules`.
      message: one or two sentences with the figures, without the remedy.
      source: where it is, in the user's code and in a library's.
      help: the remedy.
      measured: the figures, by name; bytes in keys that end in `nbytes`.
    """

    name: str
    message: str
    source: Source
    help: str = ""
    measured: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def location(self) -> Location | None:
        """The user's line; None where none is known."""
        return self.source.location


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint in source and what it is worth: the program with it against the program in
    which this one alone is gone.

    Attributes:
      function: the module or function that is checkpointed, `Block` or `layer`.
      source: where it is called, and the modules that it is; the same line in a loop is one
        checkpoint.
      defined: where that module's method or that function is defined; None where it is not known.
      policy: as a user writes it, `dots_saveable`; None: nothing is saveable.
      calls: how many times the program holds it, unrolled.
      trips: how often it runs, all calls and loops together.
      kept_nbytes, kept_without_nbytes: computed residuals of the whole program, in device memory.
      recompute_flops, recompute_fraction: what it adds; as a share of the program without it.
      peak_nbytes, peak_without_nbytes: of the whole program. Of a checkpoint that is not judged
        the peak without it, what is kept without it and what it recomputes are not known: None.
      ratio: peak bytes saved per residual byte dropped; None where no residual is dropped.
      reason: one sentence.
      shape: how it stands, where that is known: `whole`, `last-stage`, `around-loop`, `trivial`,
        `nested`; None for none of these.
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
    peak_nbytes: int
    peak_without_nbytes: int | None
    ratio: float | None
    verdict: Verdict
    reason: str
    shape: str | None = None
    findings: tuple[Finding, ...] = ()
    uncosted: tuple[str, ...] = ()
    defined: Location | None = None

    @property
    def location(self) -> Location | None:
        return self.source.location

    @property
    def saved_per_gflop(self) -> float | None:
        """Bytes of peak saved per 10^9 recomputed FLOPs; None where nothing is recomputed."""
        if self.peak_without_nbytes is None or not self.recompute_flops:
            return None
        return (self.peak_without_nbytes - self.peak_nbytes) / (self.recompute_flops / 1e9)
