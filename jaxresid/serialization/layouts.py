"""The layout of the JSON documents: where their keys are not simply the fields of the values.

Encoding and decoding both follow it. The schemas are in `jaxresid/schema/`; every key there is a
promise to the users.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxresid import results
from jaxresid.serialization.decoding import Format, Layout

_Derived = Mapping[str, Callable[[Any], Any]]


def _properties(*names: str) -> _Derived:
    return {name: operator.attrgetter(name) for name in names}


def _constants(values: Mapping[str, Any]) -> _Derived:

    def always(value: Any) -> Callable[[Any], Any]:
        return lambda _: value

    return {key: always(value) for key, value in values.items()}


def _of_total(*names: str) -> _Derived:
    return {name: operator.attrgetter(f"total.{name}") for name in names}


def _wrong_in_basis(basis: results.IntervalBasis | results.TimeBasis) -> str:
    if not basis.compilers:
        return "compilers has none"
    others = basis.others if isinstance(basis, results.IntervalBasis) else ()
    unknown = next((name for name in others if name not in basis.compilers), None)
    return "" if unknown is None else f"others has {unknown!r}, which compilers has not"


def _outside(
    name: str, at: int, key: str, spans: Sequence[results.PhaseSpan | results.Lifetime], count: int
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
    results.Location: Layout(from_one=("column",)),
    results.Aval: Layout(renamed={"spec": "split"}, blank=("spec",)),
    results.Computed: Layout(spread=("source",), derived=_constants({"value": None})),
    results.Residual: Layout(spread=("aval",), derived=_properties("nbytes")),
    results.LiveValue: Layout(spread=("aval", "source")),
    results.ProgramArray: Layout(spread=("aval",), derived=_properties("nbytes")),
    results.ProgramPoint: Layout(spread=("source",)),
    results.Lifetime: Layout(spread=("live",)),
    results.Lifetimes: Layout(
        shared={"locations": ("location", "library", "caller", "stack")},
        wrong=lambda value: _outside("at", value.at, "values", value.values, len(value.points)),
    ),
    results.Peak: Layout(
        spread=("source",),
        objects=("breakdown",),
        wrong=lambda peak: _outside(
            "curve_at", peak.curve_at, "phases", peak.phases, len(peak.curve)
        ),
    ),
    results.Cost: Layout(objects=("collectives",), derived=_properties("flops")),
    results.Phases: Layout(
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
    results.Checkpoint: Layout(
        spread=("source",), blank=("unconfirmed",), derived=_properties("saved_per_gflop")
    ),
    results.IntervalBasis: Layout(wrong=_wrong_in_basis),
    results.TimeBasis: Layout(wrong=_wrong_in_basis),
    results.Finding: Layout(spread=("source",)),
    results.NextStep: Layout(derived=_properties("command")),
    results.Mesh: Layout(objects=("axes",)),
    results.Offloading: Layout(spread=("transfers",), objects=("host_arguments",)),
    results.CompilerWarning: Layout(spread=("source",)),
    results.CompiledBuffer: Layout(spread=("source",)),
    results.OomBuffer: Layout(spread=("source",), blank=("role",)),
    results.LineBytes: Layout(spread=("source",)),
    results.OomReport: Layout(blank=("platform", "on", "phase", "program", "function")),
    results.Timing: Layout(derived=_properties("agrees")),
    results.Expression: Layout(from_one=("column", "end_column")),
    results.LowerBound: Layout(derived=_properties("nbytes", "held_nbytes")),
    results.Equation: Layout(objects=("params",)),
    results.Report: Layout(renamed=_ON, derived=_properties("totals")),
    results.Comparison: Layout(renamed=_ON),
    results.CompiledReport: Layout(renamed={"places": "on"}),
    results.Plan: Layout(renamed=_ON, derived=_properties("fits")),
    results.DiffSide: Layout(
        renamed=_ON, objects=("breakdown",), derived=_properties("recompute_fraction")
    ),
    results.ValueDifference: Layout(
        derived=_properties("before_nbytes", "after_nbytes", "growth_nbytes")
    ),
    results.LineDifference: Layout(
        derived=_properties("growth_nbytes", "host_growth_nbytes", "peak_growth_nbytes")
    ),
    results.Difference: Layout(
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
        results.Argument: _origin("path"),
        results.Constant: _origin(),
        results.Literal: _origin("value"),
    },
    is_strict=False,
)
