"""The layout of the JSON documents: where their keys are not simply the fields of the values.

Encoding and decoding both follow it. The schemas are in `jaxresid/schema/`; every key there is a
promise to the users.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxresid.results import (
    Argument,
    Aval,
    Checkpoint,
    Comparison,
    CompiledBuffer,
    CompiledReport,
    CompilerWarning,
    Computed,
    Constant,
    Cost,
    Difference,
    DiffSide,
    Equation,
    Expression,
    Finding,
    Floor,
    IntervalBasis,
    Lifetime,
    Lifetimes,
    LineBytes,
    LineDifference,
    Literal,
    LiveValue,
    Location,
    Mesh,
    NextStep,
    Offloading,
    OomBuffer,
    OomReport,
    Peak,
    Phases,
    PhaseSpan,
    Plan,
    ProgramArray,
    ProgramPoint,
    Report,
    Residual,
    TimeBasis,
    Timing,
    ValueDifference,
)
from jaxresid.serialization.decoding import Format, Layout

_Derived = Mapping[str, Callable[[Any], Any]]


def _holding(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _properties(*names: str) -> _Derived:
    """Return derived keys that hold the properties of these names."""
    return {name: operator.attrgetter(name) for name in names}


def _constants(values: Mapping[str, Any]) -> _Derived:
    """Return derived keys that always hold the same."""
    return {key: _holding(value) for key, value in values.items()}


def _of_total(*names: str) -> _Derived:
    """Return derived keys that hold figures of all phases together."""
    return {name: operator.attrgetter(f"total.{name}") for name in names}


def _wrong_in_peak(peak: Peak) -> str:
    return _outside("curve_at", peak.curve_at, "phases", peak.phases, len(peak.curve))


def _wrong_in_lifetimes(lifetimes: Lifetimes) -> str:
    return _outside("at", lifetimes.at, "values", lifetimes.values, len(lifetimes.points))


def _wrong_in_basis(basis: IntervalBasis | TimeBasis) -> str:
    if not basis.compilers:
        return "compilers has none"
    others = basis.others if isinstance(basis, IntervalBasis) else ()
    unknown = next((name for name in others if name not in basis.compilers), None)
    return "" if unknown is None else f"others has {unknown!r}, which compilers has not"


def _outside(
    name: str, at: int, key: str, spans: Sequence[PhaseSpan | Lifetime], count: int
) -> str:
    """Return which index or span is not inside of so many points; '' where all are."""
    if not 0 <= at < max(count, 1):
        return f"{name} is {at}, of {count} points"
    for i, span in enumerate(spans):
        if not 0 <= span.start <= span.stop <= count:
            return f"{key}[{i}] is from {span.start} to {span.stop}, of {count} points"
    return ""


_ON = {"place": "on"}
_LAYOUTS = {
    Location: Layout(from_one=("column",)),
    Aval: Layout(renamed={"spec": "split"}, blank=("spec",)),
    Computed: Layout(spread=("source",), derived=_constants({"value": None})),
    Residual: Layout(spread=("aval",), derived=_properties("nbytes")),
    LiveValue: Layout(spread=("aval", "source")),
    ProgramArray: Layout(spread=("aval",), derived=_properties("nbytes")),
    ProgramPoint: Layout(spread=("source",)),
    Lifetime: Layout(spread=("live",)),
    Lifetimes: Layout(
        shared={"locations": ("location", "library", "caller", "stack")}, wrong=_wrong_in_lifetimes
    ),
    Peak: Layout(spread=("source",), objects=("breakdown",), wrong=_wrong_in_peak),
    Cost: Layout(objects=("collectives",), derived=_properties("flops")),
    Phases: Layout(
        below="phases",
        derived={
            "forward_flops": operator.attrgetter("forward.flops"),
            "backward_flops": operator.attrgetter("backward.flops"),
            "recompute_flops": operator.attrgetter("recompute.flops"),
            "program_flops": operator.attrgetter("program.flops"),
            **_of_total("matmul_flops", "conv_flops", "elementwise_flops", "transcendentals"),
            **_of_total("nbytes", "uncosted", "notes"),
            "collectives": lambda phases: dict(phases.total.collectives),
        },
    ),
    Checkpoint: Layout(
        spread=("source",), blank=("unconfirmed",), derived=_properties("saved_per_gflop")
    ),
    IntervalBasis: Layout(wrong=_wrong_in_basis),
    TimeBasis: Layout(wrong=_wrong_in_basis),
    Finding: Layout(spread=("source",)),
    NextStep: Layout(derived=_properties("command")),
    Mesh: Layout(objects=("axes",)),
    Offloading: Layout(spread=("transfers",), objects=("host_arguments",)),
    CompilerWarning: Layout(spread=("source",)),
    CompiledBuffer: Layout(spread=("source",)),
    OomBuffer: Layout(spread=("source",), blank=("role",)),
    LineBytes: Layout(spread=("source",)),
    OomReport: Layout(blank=("platform", "on", "phase", "program", "function")),
    Timing: Layout(derived=_properties("agrees")),
    Expression: Layout(from_one=("column", "end_column")),
    Floor: Layout(derived=_properties("nbytes", "held_nbytes")),
    Equation: Layout(objects=("params",)),
    Report: Layout(renamed=_ON, derived=_properties("totals")),
    Comparison: Layout(renamed=_ON),
    CompiledReport: Layout(renamed={"places": "on"}),
    Plan: Layout(renamed=_ON, derived=_properties("fits")),
    DiffSide: Layout(
        renamed=_ON, objects=("breakdown",), derived=_properties("recompute_fraction")
    ),
    ValueDifference: Layout(derived=_properties("before_nbytes", "after_nbytes", "growth_nbytes")),
    LineDifference: Layout(
        derived=_properties("growth_nbytes", "host_growth_nbytes", "peak_growth_nbytes")
    ),
    Difference: Layout(
        derived=_properties(
            *("is_same", "kept_growth_nbytes", "peak_growth_nbytes", "recompute_growth_flops")
        )
    ),
}
# Every kind of origin has every key, so that readers need not ask for the kind first.
_OF_OTHER_ORIGINS: dict[str, Any] = {
    **dict.fromkeys(("path", "value", "primitive", "name", "location", "library", "caller")),
    **{"scope": "", "named_at": None, "stack": [], "within": [], "through": []},
}


def _origin(*own: str) -> Layout:
    """Return the layout of an origin that has these of the keys, and blanks in the others."""
    return Layout(derived=_constants({k: v for k, v in _OF_OTHER_ORIGINS.items() if k not in own}))


DOCUMENTS = Format(
    {
        **_LAYOUTS,
        Argument: _origin("path"),
        Constant: _origin(),
        Literal: _origin("value"),
    },
    is_strict=False,
)
