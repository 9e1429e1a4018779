"""Values -> JSON. The schemas are in `jaxresid/schema/`; every key there is a promise."""

from __future__ import annotations

import json
from typing import Any

from jaxresid.model import (
    SCHEMA_VERSION,
    Aval,
    Computed,
    Consumer,
    Equation,
    JaxInfo,
    Listing,
    Location,
    Origin,
    Report,
    Residual,
    Split,
    Target,
    Value,
)


def report_json(report: Report) -> str:
    """A report as JSON text, valid under `report.schema.json`."""
    totals = report.totals
    return _dump(
        {
            "schema": SCHEMA_VERSION,
            "jax": _jax(report.jax),
            "target": _target(report.target),
            "totals": {
                "arguments_nbytes": totals.arguments_nbytes,
                "computed_nbytes": totals.computed_nbytes,
                "host_nbytes": totals.host_nbytes,
                "constants_nbytes": totals.constants_nbytes,
            },
            "residuals": [_residual(r) for r in report.residuals],
            "warnings": list(report.warnings),
        }
    )


def split_json(split: Split) -> str:
    """A split as JSON text, valid under `split.schema.json`."""
    return _dump(
        {
            "schema": SCHEMA_VERSION,
            "jax": _jax(split.jax),
            "target": _target(split.target),
            "forward": _listing(split.forward),
            "backward": _listing(split.backward),
            "residuals": [_residual(r) for r in split.residuals],
        }
    )


def _dump(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _jax(jax: JaxInfo) -> dict[str, Any]:
    return {"version": jax.version, "flags": dict(jax.flags)}


def _target(target: Target) -> dict[str, Any]:
    return {
        "name": target.name,
        "mode": target.mode,
        "differentiated": list(target.differentiated),
    }


def _residual(residual: Residual) -> dict[str, Any]:
    return {
        **_aval(residual.aval),
        "nbytes": residual.nbytes,
        "trips": residual.trips,
        "origin": _origin(residual.origin),
        "consumers": [_consumer(c) for c in residual.consumers],
        "marks": [mark.value for mark in residual.marks],
    }


def _aval(aval: Aval) -> dict[str, Any]:
    return {"dtype": aval.dtype, "shape": list(aval.shape), "memory": aval.memory}


def _origin(origin: Origin) -> dict[str, Any]:
    """Every kind has every key, so that readers need not ask for the kind first."""
    computed = origin if isinstance(origin, Computed) else None
    return {
        "kind": origin.kind,
        "path": getattr(origin, "path", None),
        "value": getattr(origin, "value", None),
        "primitive": computed.primitive if computed else None,
        "name": computed.name if computed else None,
        "location": _location(computed.location if computed else None),
        "library": _location(computed.library if computed else None),
        "named_at": _location(computed.named_at if computed else None),
        "stack": [_location(frame) for frame in computed.stack] if computed else [],
        "scope": computed.scope if computed else "",
        "within": list(computed.within) if computed else [],
        "through": list(computed.through) if computed else [],
    }


def _location(location: Location | None) -> dict[str, Any] | None:
    if location is None:
        return None
    return {
        "file": location.file,
        "line": location.line,
        # Inside we count columns from 0; editors and the linter's formats count from 1.
        "column": None if location.column is None else location.column + 1,
        "function": location.function,
        "code": location.code,
    }


def _consumer(consumer: Consumer) -> dict[str, Any]:
    return {
        "primitive": consumer.primitive,
        "location": _location(consumer.location),
        "within": list(consumer.within),
        "phase": consumer.phase,
    }


def _listing(listing: Listing) -> dict[str, Any]:
    return {
        "inputs": [_value(v) for v in listing.inputs],
        "equations": [_equation(e) for e in listing.equations],
        "outputs": [_value(v) for v in listing.outputs],
        "hidden": listing.hidden,
    }


def _equation(equation: Equation) -> dict[str, Any]:
    return {
        "primitive": equation.primitive,
        "params": dict(equation.params),
        "inputs": [_value(v) for v in equation.inputs],
        "outputs": [_value(v) for v in equation.outputs],
        "location": _location(equation.location),
        "inner": [_listing(inner) for inner in equation.inner],
        "folded": equation.folded,
    }


def _value(value: Value) -> dict[str, Any]:
    return {
        "name": value.name,
        "aval": _aval(value.aval) if value.aval else None,
        "residual": value.residual,
    }
