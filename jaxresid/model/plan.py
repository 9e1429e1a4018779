"""The values of `jaxresid plan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.model.display import show, to_json
from jaxresid.model.target import JaxInfo, PlaceInfo, Target
from jaxresid.model.values import Location


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression in source whose value can be given a name.

    Attributes:
      file: the path, relative to the working directory where it is below it.
      line: the first row, from 1.
      column: the first column in code points, from 0.
      end_line: the last row.
      end_column: the column behind the end.
      function: the function that it is in.
      code: its source; '' where it is not known.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """A value of a checkpoint's body that a plan saves or offloads.

    Attributes:
      name: its checkpoint_name.
      action: whether it is saved or offloaded.
      nbytes: its bytes, all calls and trips together.
      expression: where it has to be named; None for one that already has that name.
    """

    name: str
    action: OneOf["save", "offload"]
    nbytes: int
    expression: Expression | None = None


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """The treatment that a plan gives to some of a place's calls.

    Attributes:
      calls: how many calls, in a row in program order.
      checkpointed: whether a checkpoint is around them.
      policy: as written after `jax.checkpoint_policies.`, `save_only_these_names('qkv')`; None: no
        policy (or no checkpoint).
      values: the values that the policy saves and offloads, where the plan chose by value.
    """

    calls: int
    checkpointed: bool
    policy: str | None = None
    values: tuple[PlannedValue, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedSite:
    """The treatment that a plan gives to one place.

    Attributes:
      kind: `checkpoint` for one that is in the code, `scan` for the body of a loop, `call` for
        calls of a function, `whole` for the target itself.
      function: the function that is (to be) checkpointed.
      location: where it is called.
      calls: how many times the program holds it, unrolled; `parts` add up to it.
      trips: how often it runs, all calls and loops together.
      parts: what the plan does with the calls, in program order.
      changed: whether the code has to change for it.
      library: the installed package that holds the function; None for the user's own.
      defined: where the function is defined; None where it is not known.
    """

    kind: OneOf["checkpoint", "scan", "call", "whole"]
    function: str
    location: Location | None
    calls: int
    trips: int
    parts: tuple[PlannedPart, ...]
    changed: bool
    library: str | None = None
    defined: Location | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The cheapest way found to fit a function into a budget of memory.

    Attributes:
      target: what was planned.
      jax: the JAX that traced.
      place: the place that the figures are for.
      chip: the chip whose published figures the time is estimated from; None where none are known.
      budget_nbytes: the budget.
      offload: whether values may be moved to host memory.
      fits: whether it does; if not, the figures and sites are those of the lowest peak found.
      floor_nbytes: the lowest peak of everything that was tried.
      written_nbytes: the peak of the code as it is.
      plain_nbytes: the peak of the code without any checkpoint.
      peak_nbytes: the peak of the function with the plan applied, traced again; where the plan is
        verified, that of its code. So are the next three.
      kept_nbytes: bytes of computed residuals in device memory.
      host_nbytes: bytes of computed residuals in host memory.
      recompute_flops: FLOPs that the checkpoints add.
      recompute_fraction: that as a share of the FLOPs without any checkpoint.
      time_fraction: estimated time over that without any checkpoint; None where it is not known.
      sites: the places that it treats.
      proven: whether nothing cheaper among the plan's choices fits: all that could be were traced.
      tried: how many variants were traced.
      code: the code to write, one block for each stretch of lines that changes.
      unwritten: what of the plan cannot be written as an edit, each with the reason and what to do
        by hand.
      verified: whether the code, traced, gives the figures.
      doubt: why it is not verified; None where it is.
      uncosted: primitives that no cost rule covers; recompute and time are lower bounds.
      warnings: what was assumed, and what may be wrong.
    """

    target: Target
    jax: JaxInfo
    place: PlaceInfo
    chip: str | None
    budget_nbytes: int
    offload: bool
    fits: bool
    floor_nbytes: int
    written_nbytes: int
    plain_nbytes: int
    peak_nbytes: int
    kept_nbytes: int
    host_nbytes: int
    recompute_flops: int
    recompute_fraction: float
    time_fraction: float | None
    sites: tuple[PlannedSite, ...]
    proven: bool
    tried: int
    code: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    verified: bool = False
    doubt: str | None = None
    uncosted: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_untraced(self) -> bool:
        """Return whether all of it can be written, but the code could not be traced."""
        return self.doubt is not None and not self.unwritten

    def print(self) -> None:
        """Print the text of `jaxresid plan` to stdout."""
        show(self)

    def to_json(self) -> str:
        """Return the plan as JSON text; its schema is `jaxresid/schema/plan.schema.json`."""
        return to_json(self)
