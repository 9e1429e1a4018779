"""The frozen values everyone speaks in: standard library only, no analysis, no formatting.

Bytes are integers in fields that end in `nbytes`. A loop's residual carries its stacked aval, so
its `nbytes` already counts every trip; `trips` only informs.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal as OneOf

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Location:
    """A place in source. `line` is 1-based, `column` 0-based in code points (None: unknown)."""

    file: str
    line: int
    column: int | None
    function: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Aval:
    """Shape, dtype and memory space of a value. `memory` is `device` or `host`."""

    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    memory: OneOf["device", "host"] = "device"

    @property
    def nbytes(self) -> int:
        """Bytes of one dense array of this aval; padding and tiling are the compiler's."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True)
class Argument:
    """A residual that is an input: alive anyway, so it costs no extra memory."""

    path: str
    kind: OneOf["argument"] = "argument"


@dataclass(frozen=True, slots=True)
class Constant:
    """A residual that is an array the function closed over."""

    kind: OneOf["constant"] = "constant"


@dataclass(frozen=True, slots=True)
class Literal:
    """A residual that is a number written into the jaxpr: no storage."""

    value: str
    kind: OneOf["literal"] = "literal"


@dataclass(frozen=True, slots=True)
class Computed:
    """A residual that the forward pass computes and keeps.

    Attributes:
      primitive: what computes it, seen through reshapes, casts, transposes, broadcasts and names.
      location: innermost line of the user's own code; None where JAX recorded none.
      library: the library call that made it, where that differs from `location`.
      stack: the user's and the libraries' frames, outermost first, without JAX's own.
      scope: name-stack scope, e.g. `trunk/attention`, or a Flax module path.
      name: its `checkpoint_name`, if any.
      named_at: where it was named.
      within: enclosing loops, calls and transforms, outermost first: `scan ×48`, `jit f`.
      through: what was looked through to find `primitive`, outermost (the kept value) first.
      path: the argument it is a view, a cast or a slice of, if it is one.
    """

    primitive: str
    location: Location | None
    library: Location | None = None
    stack: tuple[Location, ...] = ()
    scope: str = ""
    name: str | None = None
    named_at: Location | None = None
    within: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    path: str | None = None
    kind: OneOf["computed"] = "computed"


Origin = Argument | Constant | Literal | Computed


class Mark(enum.StrEnum):
    """What else is worth knowing about a residual."""

    PRIMAL_OUTPUT = "primal-output"  # also returned by the function: alive anyway
    DUPLICATE = "duplicate"  # the same value as an earlier residual
    FREE = "free-to-recompute"  # made of literals, iota and scalars: cheaper to make than to keep
    CARRY = "carry"  # a loop's carry, kept as it enters each trip
    INVARIANT = "loop-invariant"  # the same value, stacked once per trip
    UNREAD = "unread"  # no backward eqn reads it; a compiler drops it
    OFFLOADED = "offloaded"  # moved to host memory


@dataclass(frozen=True, slots=True)
class Consumer:
    """A backward eqn that reads a residual.

    `phase` is `recompute` when the eqn re-creates forward values inside a checkpoint, else
    `backward`.
    """

    primitive: str
    location: Location | None
    within: tuple[str, ...] = ()
    phase: OneOf["backward", "recompute"] = "backward"


@dataclass(frozen=True, slots=True)
class Residual:
    """One leaf of what `jax.vjp` keeps between the forward and the backward pass."""

    aval: Aval
    origin: Origin
    trips: int = 1
    consumers: tuple[Consumer, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes


@dataclass(frozen=True, slots=True)
class Totals:
    """Bytes by kind; each residual counts in exactly one field, literals in none.

    `computed_nbytes` counts computed residuals in device memory, `host_nbytes` those in host
    memory; arguments are alive anyway and constants live with the function.
    """

    arguments_nbytes: int
    computed_nbytes: int
    host_nbytes: int
    constants_nbytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What running something takes, as counted on its jaxpr: an estimate of work, not of time.

    Costs add, subtract, and multiply by a number of trips.

    Attributes:
      matmul_flops, conv_flops, elementwise_flops: a multiply-add is two.
      transcendentals: evaluations of exp, tanh, sin and the like; apart from the FLOPs.
      nbytes: bytes that each eqn by itself reads and writes; fusion saves most of them.
      uncosted: primitives that no rule covers, by name; they make every figure a lower bound.
      notes: what was assumed, such as a while loop's unknown trips.
    """

    matmul_flops: int = 0
    conv_flops: int = 0
    elementwise_flops: int = 0
    transcendentals: int = 0
    nbytes: int = 0
    uncosted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        return self.matmul_flops + self.conv_flops + self.elementwise_flops

    def __add__(self, other: Cost) -> Cost:
        return self._with(other, 1)

    def __sub__(self, other: Cost) -> Cost:
        return self._with(other, -1)

    def __mul__(self, trips: int) -> Cost:
        return Cost(
            self.matmul_flops * trips,
            self.conv_flops * trips,
            self.elementwise_flops * trips,
            self.transcendentals * trips,
            self.nbytes * trips,
            self.uncosted,
            self.notes,
        )

    def _with(self, other: Cost, sign: int) -> Cost:
        return Cost(
            self.matmul_flops + sign * other.matmul_flops,
            self.conv_flops + sign * other.conv_flops,
            self.elementwise_flops + sign * other.elementwise_flops,
            self.transcendentals + sign * other.transcendentals,
            self.nbytes + sign * other.nbytes,
            tuple(sorted({*self.uncosted, *other.uncosted})),
            tuple(dict.fromkeys((*self.notes, *other.notes))),
        )


@dataclass(frozen=True, slots=True)
class Phases:
    """The cost of a value with its gradients, in parts that add up to all of it.

    `forward` and `backward` are what the function would cost without any checkpoint; `recompute`
    is what its checkpoints add: with them minus without. `update` is what a training step does
    besides: its optimizer.
    """

    forward: Cost
    backward: Cost
    recompute: Cost
    update: Cost = Cost()

    @property
    def total(self) -> Cost:
        return self.forward + self.backward + self.recompute + self.update


@dataclass(frozen=True, slots=True)
class Live:
    """Equal values that are live at the peak. `nbytes` counts all `count` of them.

    Attributes:
      kind: `argument`, `constant`, `output`, `gradient`, `residual`, `temporary`; in a training
        step the arguments are `parameters`, `optimizer-state` or `batch`.
      aval: None for what an op needs while it runs and has no name.
      primitive: what makes it; None for an argument.
      path: an argument's path.
      phase: the pass that makes it; None for an argument.
    """

    kind: str
    nbytes: int
    aval: Aval | None
    count: int = 1
    primitive: str | None = None
    path: str | None = None
    location: Location | None = None
    phase: str | None = None


@dataclass(frozen=True, slots=True)
class Peak:
    """An estimate of the most memory that the value and its gradients (or the step) take.

    Attributes:
      nbytes: arguments + outputs + temporaries - aliased, as XLA adds them up.
      profile: `accelerator` or `cpu`: whose way of fusing was assumed.
      location, primitive, phase: the op at the peak; phase is `forward`, `recompute`, `backward`
        or, in a step, `update`.
      aliased_nbytes: outputs that take over the buffers of donated arguments.
      host_nbytes: the most bytes of host memory at once, not in `nbytes`.
      live: what is live at the peak, biggest first.
      breakdown: kind -> bytes; the kinds of `live`; adds up to `nbytes`.
      curve: total bytes over the program, evenly spaced, at most 200 points.
      curve_at: index of the peak in `curve`.
      uncounted: primitives whose memory is not known; they make the figure a lower bound.
    """

    nbytes: int
    profile: str
    location: Location | None
    primitive: str | None
    phase: str
    arguments_nbytes: int
    outputs_nbytes: int
    temporaries_nbytes: int
    aliased_nbytes: int
    host_nbytes: int
    live: tuple[Live, ...]
    breakdown: tuple[tuple[str, int], ...]
    curve: tuple[int, ...]
    curve_at: int
    uncounted: tuple[str, ...] = ()


class Verdict(enum.StrEnum):
    """What a checkpoint is worth."""

    EARNS = "earns-its-keep"
    SAVES_NOTHING = "saves-nothing"
    COSTS_MEMORY = "costs-memory"
    UNDONE = "undone-by-xla"
    OVERRIDDEN = "overridden"
    MATCHED_NOTHING = "matched-nothing"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that only a trace can tell.

    Attributes:
      name: the name of the rule that it is a case of, as in `jaxresid rules`.
      message: one or two sentences with the figures, without the remedy.
      help: the remedy.
      location: where the user wrote it; None where no line is known.
      measured: the figures, by name; bytes in keys that end in `nbytes`.
    """

    name: str
    message: str
    location: Location | None
    help: str = ""
    measured: Mapping[str, object] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint in source and what it is worth: the program with it against the program in
    which this one alone is gone.

    Attributes:
      function: the function that is checkpointed.
      location: where it is called; the same line in a loop is one checkpoint.
      policy: as a user writes it, `dots_saveable`; None: nothing is saveable.
      calls: how many times the program holds it, unrolled.
      trips: how often it runs, all calls and loops together.
      kept_nbytes, kept_without_nbytes: computed residuals of the whole program, in device memory.
      recompute_flops, recompute_fraction: what it adds; as a share of the program without it.
      peak_nbytes, peak_without_nbytes: of the whole program.
      ratio: peak bytes saved per residual byte dropped; None where no residual is dropped.
      reason: one sentence.
      shape: how it stands, where that is known: `whole`, `last-stage`, `around-loop`, `trivial`,
        `nested`; None for none of these.
    """

    function: str
    location: Location | None
    policy: str | None
    prevent_cse: bool
    calls: int
    trips: int
    kept_nbytes: int
    kept_without_nbytes: int
    recompute_flops: int
    recompute_fraction: float
    peak_nbytes: int
    peak_without_nbytes: int
    ratio: float | None
    verdict: Verdict
    reason: str
    shape: str | None = None
    findings: tuple[Finding, ...] = ()
    uncosted: tuple[str, ...] = ()

    @property
    def saved_per_gflop(self) -> float | None:
        """Bytes of peak saved per 10^9 recomputed FLOPs; None where nothing is recomputed."""
        saved = self.peak_without_nbytes - self.peak_nbytes
        return saved / (self.recompute_flops / 1e9) if self.recompute_flops > 0 else None


@dataclass(frozen=True, slots=True)
class Target:
    """What was inspected. `differentiated` are the argument leaves, as paths; of a training step,
    those that it differentiates itself, where they can be told."""

    name: str
    differentiated: tuple[str, ...]
    mode: OneOf["function", "step"] = "function"


@dataclass(frozen=True, slots=True)
class JaxInfo:
    """The JAX that traced, and those of its flags that change the answer."""

    version: str
    flags: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Report:
    """What a function's backward pass keeps, what it costs, and what its checkpoints are worth."""

    target: Target
    jax: JaxInfo
    residuals: tuple[Residual, ...]
    cost: Phases
    peak: Peak
    checkpoints: tuple[Checkpoint, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def totals(self) -> Totals:
        return totals_of(self.residuals)

    def print(self, *, group_by: str | None = None, top: int = 20, all: bool = False) -> None:
        """Prints the text report to stdout; the options are those of `jaxresid report`."""
        from jaxresid.render.text import print_report

        print_report(self, group_by=group_by, top=None if all else top, all=all)

    def to_json(self) -> str:
        """The report as JSON text; its schema is `jaxresid/schema/report.schema.json`."""
        from jaxresid.render.json import report_json

        return report_json(self)

    def _repr_html_(self) -> str:
        from jaxresid.render.html import report_html

        return report_html(self)


def totals_of(residuals: tuple[Residual, ...]) -> Totals:
    """The bytes of residuals by kind."""
    return Totals(
        arguments_nbytes=_sum(residuals, "argument"),
        computed_nbytes=_sum(residuals, "computed", "device"),
        host_nbytes=_sum(residuals, "computed", "host"),
        constants_nbytes=_sum(residuals, "constant"),
    )


def _sum(residuals: tuple[Residual, ...], kind: str, memory: str | None = None) -> int:
    return sum(
        r.nbytes
        for r in residuals
        if r.origin.kind == kind and (memory is None or r.aval.memory == memory)
    )


@dataclass(frozen=True, slots=True)
class Timing:
    """How long something ran on the local device, against the function without checkpoints.

    Attributes:
      seconds: median of the rounds.
      ratio: median over the rounds of its time to that of no checkpoint in the same round; None
        where the function without checkpoints did not run.
      low, high: the lowest and the highest ratio of a round.
      rounds: how many there were.
      gradient_error: the greatest difference to the results without checkpoints, relative to the
        greatest absolute value of the array that it is in; None where one of the two gave none.
      tolerance: what rounding explains, by the narrowest dtype that the function computes in.
    """

    seconds: float
    ratio: float | None
    low: float | None
    high: float | None
    rounds: int
    gradient_error: float | None
    tolerance: float

    @property
    def agrees(self) -> bool | None:
        return None if self.gradient_error is None else self.gradient_error <= self.tolerance


@dataclass(frozen=True, slots=True)
class Row:
    """A function with one policy at the places of a comparison.

    Attributes:
      policy: `none`, `as-written`, the name in `jax.checkpoint_policies` with its names, or
        `module:policy`.
      at: where: `all-sites`, `scan-bodies`, `whole` or a place, `model.py:42 (layer)`.
      kept_nbytes, host_nbytes: computed residuals in device and in host memory.
      recompute_flops: what it adds to the function without any checkpoint.
      recompute_fraction: that as a share of the function without any checkpoint.
      time_fraction: estimated time over that without any checkpoint, as a share of it.
      pareto: no other row without host bytes has both a lower peak and less to recompute.
      knee: of those the one beyond which saving memory gets dear.
      error: why there are no figures.
      uncosted: primitives that no cost rule covers; recompute and time are lower bounds.
    """

    policy: str
    at: str
    kept_nbytes: int | None = None
    host_nbytes: int | None = None
    peak_nbytes: int | None = None
    recompute_flops: int | None = None
    recompute_fraction: float | None = None
    time_fraction: float | None = None
    pareto: bool = False
    knee: bool = False
    error: str | None = None
    uncosted: tuple[str, ...] = ()
    measured: Timing | None = None
    measure_error: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A function under several policies.

    Attributes:
      device: the chip whose published figures the time is estimated from.
      places: where the policy goes, as a user finds them: `model.py:42 (layer) ×48`.
      measured_on: the local device of the timings, if there are any.
    """

    target: Target
    jax: JaxInfo
    profile: str
    device: str
    at: str
    places: tuple[str, ...]
    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()
    measured_on: str | None = None

    def print(self) -> None:
        """Prints the text of `jaxresid compare` to stdout."""
        from jaxresid.render.compare import print_comparison

        print_comparison(self)

    def to_json(self) -> str:
        """The comparison as JSON text; its schema is `jaxresid/schema/compare.schema.json`."""
        from jaxresid.render.json import comparison_json

        return comparison_json(self)


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression in source whose value can be given a name.

    Rows are 1-based, columns 0-based in code points, the end is exclusive. `file` is relative to
    the working directory where it is below it.
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
      expression: where it has to be named; None for one that already has that name.
      nbytes: of all calls and trips together.
    """

    name: str
    action: OneOf["save", "offload"]
    nbytes: int
    expression: Expression | None = None


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """What a plan does with some of a place's calls: `calls` in a row, in program order.

    Attributes:
      checkpointed: whether a checkpoint is around them.
      policy: as written after `jax.checkpoint_policies.`, `save_only_these_names('qkv')`; None: no
        policy (or no checkpoint).
      values: what the policy saves and offloads, where the plan chose by value.
    """

    calls: int
    checkpointed: bool
    policy: str | None = None
    values: tuple[PlannedValue, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedSite:
    """What a plan does at one place.

    Attributes:
      kind: `checkpoint` for one that is in the code, `scan` for the body of a loop, `call` for
        calls of a function, `whole` for the target itself.
      function: the function that is (to be) checkpointed.
      location: where it is called.
      calls: how many times the program holds it, unrolled; `parts` add up to it.
      trips: how often it runs, all calls and loops together.
      changed: whether the code has to change for it.
    """

    kind: OneOf["checkpoint", "scan", "call", "whole"]
    function: str
    location: Location | None
    calls: int
    trips: int
    parts: tuple[PlannedPart, ...]
    changed: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The cheapest way found to fit a function into a budget of memory.

    Attributes:
      fits: whether it does; if not, the figures and sites are those of the lowest peak found.
      floor_nbytes: the lowest peak of everything that was tried.
      written_nbytes, plain_nbytes: the peak of the code as it is, and without any checkpoint.
      peak_nbytes, kept_nbytes, host_nbytes, recompute_flops: of the function with the plan applied,
        traced again.
      proven: whether nothing cheaper among the plan's choices fits: all that could be were traced.
      tried: how many variants were traced.
      code: the code to write, one block per site.
    """

    target: Target
    jax: JaxInfo
    profile: str
    device: str
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
    uncosted: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def print(self) -> None:
        """Prints the text of `jaxresid plan` to stdout."""
        from jaxresid.render.plan import print_plan

        print_plan(self)

    def to_json(self) -> str:
        """The plan as JSON text; its schema is `jaxresid/schema/plan.schema.json`."""
        from jaxresid.render.json import plan_json

        return plan_json(self)


@dataclass(frozen=True, slots=True)
class Value:
    """A variable of a `Listing`; `residual` is its number in the report, if it is kept."""

    name: str
    aval: Aval | None
    residual: int | None = None


@dataclass(frozen=True, slots=True)
class Equation:
    """One eqn of a `Listing`; `inner` are its nested jaxprs, `folded` their eqns if hidden."""

    primitive: str
    params: tuple[tuple[str, str], ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    location: Location | None
    inner: tuple[Listing, ...] = ()
    folded: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """A jaxpr made readable. `hidden` eqns were left out after the last one shown."""

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Value, ...]
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """The forward and the backward jaxpr, residuals numbered alike in both."""

    target: Target
    jax: JaxInfo
    forward: Listing
    backward: Listing
    residuals: tuple[Residual, ...]
