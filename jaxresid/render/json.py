"""Rendering of values as JSON.

The schemas are in `jaxresid/schema/`; every key there is a promise to the users.
"""

from __future__ import annotations

import math
from typing import Any

from jaxresid.model import (
    NOWHERE,
    SCHEMA_VERSION,
    Aval,
    Checkpoint,
    Collective,
    Comparison,
    ComparisonRow,
    Compiled,
    CompiledBuffer,
    CompiledReport,
    CompilerWarning,
    Computed,
    Configuration,
    Consumer,
    Cost,
    Equation,
    EstimatedVerdict,
    Expression,
    Finding,
    Floor,
    FrontRow,
    IntervalBasis,
    JaxInfo,
    Listing,
    LiveValue,
    Location,
    Mesh,
    Offloading,
    Origin,
    Peak,
    Phases,
    PlaceInfo,
    Plan,
    PlannedPart,
    PlannedSite,
    PlannedValue,
    Report,
    Residual,
    Selection,
    Source,
    Split,
    SweepRow,
    Target,
    TimeBasis,
    Timing,
    TriedPlace,
    Variable,
)
from jaxresid.safe_text import json_text


def report_json(report: Report) -> str:
    """Return a report as JSON text, valid under `report.schema.json`."""
    totals = report.totals
    return _dump(
        {
            "schema": SCHEMA_VERSION,
            "jax": _jax(report.jax),
            "target": _target(report.target),
            "on": _place(report.place),
            "totals": {
                "arguments_nbytes": totals.arguments_nbytes,
                "computed_nbytes": totals.computed_nbytes,
                "host_nbytes": totals.host_nbytes,
                "constants_nbytes": totals.constants_nbytes,
                "host_arguments_nbytes": totals.host_arguments_nbytes,
            },
            "cost": _cost(report.cost),
            "peak": None if report.peak is None else _peak(report.peak),
            "checkpoints": [_checkpoint(c) for c in report.checkpoints],
            "residuals": [_residual(r) for r in report.residuals],
            "mesh": _mesh(report.mesh),
            "offloading": _offloading(report.offloading) if report.offloading else None,
            "findings": [_finding(f) for f in report.findings],
            "compiled": [_compiled(c) for c in report.compiled],
            "warnings": list(report.warnings),
        }
    )


def split_json(split: Split) -> str:
    """Return a split as JSON text, valid under `split.schema.json`."""
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


def comparison_json(comparison: Comparison) -> str:
    """Return a comparison as JSON text, valid under `compare.schema.json`."""
    return _dump(
        {
            "schema": SCHEMA_VERSION,
            "jax": _jax(comparison.jax),
            "target": _target(comparison.target),
            "on": _place(comparison.place),
            "chip": comparison.chip,
            "time_basis": _time_basis(comparison.time_basis) if comparison.time_basis else None,
            "times_checked_on": list(comparison.times_checked_on),
            "at": comparison.at,
            "places": list(comparison.places),
            "rows": [_row(row) for row in comparison.rows],
            "measured_on": comparison.measured_on,
            "mesh": _mesh(comparison.mesh),
            "warnings": list(comparison.warnings),
        }
    )


def sweep_row_json(row: SweepRow) -> str:
    """Return a result of a sweep as one line of JSON, valid under `sweep.schema.json`."""
    line = {
        "schema": SCHEMA_VERSION,
        "policy": row.policy,
        "batch": row.batch,
        "on": row.on,
        "key": row.key,
        "target": row.target,
        "at": row.at,
        "kept_nbytes": row.kept_nbytes,
        "host_nbytes": row.host_nbytes,
        "peak_nbytes": row.peak_nbytes,
        "recompute_flops": row.recompute_flops,
        "recompute_fraction": row.recompute_fraction,
        "compiled": _figures(row.compiled) if row.compiled else None,
        "error": row.error,
        "transient": row.transient,
    }
    return json_text(line, indent=None)


def _figures(compiled: Compiled) -> dict[str, Any]:
    """Return the JSON object of a compiled program without its buffers."""
    left_out = ("buffers", "matched_nbytes", "live_nbytes")
    return {key: value for key, value in _compiled(compiled).items() if key not in left_out}


def plan_json(plan: Plan) -> str:
    """Return a plan as JSON text, valid under `plan.schema.json`."""
    return _dump(
        {
            "schema": SCHEMA_VERSION,
            "jax": _jax(plan.jax),
            "target": _target(plan.target),
            "on": _place(plan.place),
            "chip": plan.chip,
            "budget_nbytes": plan.budget_nbytes,
            "offload": plan.offload,
            "aim": plan.aim,
            "answer": plan.answer,
            "fits": plan.fits,
            "lowest_nbytes": plan.lowest_nbytes,
            "written_nbytes": plan.written_nbytes,
            "plain_nbytes": plan.plain_nbytes,
            "peak_nbytes": plan.peak_nbytes,
            "triton_peak_nbytes": plan.triton_peak_nbytes,
            "estimate_nbytes": plan.estimate_nbytes,
            "low_nbytes": plan.low_nbytes,
            "high_nbytes": plan.high_nbytes,
            "kept_nbytes": plan.kept_nbytes,
            "host_nbytes": plan.host_nbytes,
            "recompute_flops": plan.recompute_flops,
            "plain_flops": plan.plain_flops,
            "recompute_fraction": plan.recompute_fraction,
            "time_fraction": plan.time_fraction,
            "seconds": plan.seconds,
            "low_time_fraction": plan.low_time_fraction,
            "high_time_fraction": plan.high_time_fraction,
            "time_basis": _time_basis(plan.time_basis) if plan.time_basis else None,
            "times_checked_on": list(plan.times_checked_on),
            "proven": plan.proven,
            "tried": plan.tried,
            "choices": [_tried_place(each) for each in plan.choices],
            "interrupted": plan.interrupted,
            "selection": _selection(plan.selection),
            "floor": _floor(plan.floor),
            "sites": [_site(site) for site in plan.sites],
            "code": list(plan.code),
            "unwritten": list(plan.unwritten),
            "verified": plan.verified,
            "doubt": plan.doubt,
            "confirmed": plan.confirmed,
            "by_xla": list(plan.by_xla),
            "compiles": plan.compiles,
            "unconfirmed": list(plan.unconfirmed),
            "uncosted": list(plan.uncosted),
            "warnings": list(plan.warnings),
        }
    )


def _selection(made: Selection) -> dict[str, Any]:
    return {
        "configuration": _configuration(made.configuration),
        "front": [_front_row(row) for row in made.front],
        "beaten": [
            {
                "configuration": _configuration(each.configuration),
                "fits": each.fits,
                "reason": each.reason,
            }
            for each in made.beaten
        ],
        "searched": made.searched,
        "followed": made.followed,
        "skipped": made.skipped,
        "to_set": list(made.to_set),
    }


def _configuration(configuration: Configuration) -> dict[str, Any]:
    return {
        "batch": configuration.batch,
        "microbatches": configuration.microbatches,
        "mesh": configuration.mesh,
    }


def _front_row(row: FrontRow) -> dict[str, Any]:
    return {
        "configuration": _configuration(row.configuration),
        "checkpoints": row.checkpoints,
        "chosen": row.chosen,
        "answer": row.answer,
        "peak_nbytes": row.peak_nbytes,
        "low_nbytes": row.low_nbytes,
        "high_nbytes": row.high_nbytes,
        "recompute_flops": row.recompute_flops,
        "recompute_fraction": row.recompute_fraction,
        "seconds": row.seconds,
        "items_per_s": row.items_per_s,
    }


def compiled_json(report: CompiledReport) -> str:
    """Return XLA's figures as JSON text, valid under `compile.schema.json`."""
    return _dump(
        {
            "schema": SCHEMA_VERSION,
            "jax": _jax(report.jax),
            "target": _target(report.target),
            "on": [_place(place) for place in report.places],
            "mesh": _mesh(report.mesh),
            "compiled": [_compiled(c) for c in report.compiled],
            "warnings": list(report.warnings),
        }
    )


def _dump(value: Any) -> str:
    return json_text(value)


def _jax(jax: JaxInfo) -> dict[str, Any]:
    return {"version": jax.version, "flags": dict(jax.flags), "compilers": dict(jax.compilers)}


def _place(place: PlaceInfo) -> dict[str, Any]:
    return {
        "name": place.name,
        "kind": place.kind,
        "origin": place.origin,
        "profile": place.profile,
        "memory_nbytes": place.memory_nbytes,
        "intervals": _intervals(place.intervals) if place.intervals else None,
    }


def _intervals(basis: IntervalBasis) -> dict[str, Any]:
    return {
        "programs": basis.programs,
        "places": list(basis.places),
        "compilers": {name: list(versions) for name, versions in basis.compilers.items()},
        "smallest_nbytes": basis.smallest_nbytes,
        "largest_nbytes": basis.largest_nbytes,
        "others": dict(basis.others),
        "widened": basis.widened,
    }


def _time_basis(basis: TimeBasis) -> dict[str, Any]:
    return {
        "place": basis.place,
        "by": basis.by,
        "compilers": {name: list(versions) for name, versions in basis.compilers.items()},
        "models": basis.models,
        "pairs": basis.pairs,
        "coverage": basis.coverage,
        "factor": basis.factor,
    }


def _target(target: Target) -> dict[str, Any]:
    return {
        "name": target.name,
        "mode": target.mode,
        "differentiated": list(target.differentiated),
    }


def _cost(cost: Phases) -> dict[str, Any]:
    total = cost.total
    return {
        "forward_flops": cost.forward.flops,
        "backward_flops": cost.backward.flops,
        "recompute_flops": cost.recompute.flops,
        **_work(total),
        "collectives": dict(total.collectives),
        "uncosted": list(total.uncosted),
        "notes": list(total.notes),
        "phases": {
            "forward": _phase(cost.forward),
            "backward": _phase(cost.backward),
            "recompute": _phase(cost.recompute),
        },
    }


def _phase(cost: Cost) -> dict[str, int]:
    return {"flops": cost.flops, **_work(cost)}


def _work(cost: Cost) -> dict[str, int]:
    return {
        "matmul_flops": cost.matmul_flops,
        "conv_flops": cost.conv_flops,
        "elementwise_flops": cost.elementwise_flops,
        "transcendentals": cost.transcendentals,
        "nbytes": cost.nbytes,
    }


def _peak(peak: Peak) -> dict[str, Any]:
    return {
        "nbytes": peak.nbytes,
        "low_nbytes": peak.low_nbytes,
        "high_nbytes": peak.high_nbytes,
        "profile": peak.profile,
        "phase": peak.phase,
        "primitive": peak.primitive,
        **_source(peak.source),
        "arguments_nbytes": peak.arguments_nbytes,
        "outputs_nbytes": peak.outputs_nbytes,
        "temporaries_nbytes": peak.temporaries_nbytes,
        "aliased_nbytes": peak.aliased_nbytes,
        "host_nbytes": peak.host_nbytes,
        "breakdown": dict(peak.breakdown),
        "live": [_live(live) for live in peak.live],
        "curve": list(peak.curve),
        "curve_at": peak.curve_at,
        "uncounted": list(peak.uncounted),
    }


def _live(live: LiveValue) -> dict[str, Any]:
    return {
        "kind": live.kind,
        "nbytes": live.nbytes,
        "count": live.count,
        "dtype": live.aval.dtype if live.aval else None,
        "shape": list(live.aval.shape) if live.aval else None,
        **_shard(live.aval),
        "primitive": live.primitive,
        "path": live.path,
        **_source(live.source),
        "phase": live.phase,
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "function": checkpoint.function,
        **_source(checkpoint.source),
        "defined": _location(checkpoint.defined),
        "policy": checkpoint.policy,
        "prevent_cse": checkpoint.prevent_cse,
        "calls": checkpoint.calls,
        "trips": checkpoint.trips,
        "kept_nbytes": checkpoint.kept_nbytes,
        "kept_without_nbytes": checkpoint.kept_without_nbytes,
        "peak_nbytes": checkpoint.peak_nbytes,
        "peak_without_nbytes": checkpoint.peak_without_nbytes,
        "recompute_flops": checkpoint.recompute_flops,
        "recompute_fraction": checkpoint.recompute_fraction,
        "uncosted": list(checkpoint.uncosted),
        "ratio": checkpoint.ratio,
        "saved_per_gflop": checkpoint.saved_per_gflop,
        "verdict": checkpoint.verdict.value,
        "reason": checkpoint.reason,
        "shape": checkpoint.shape,
        "findings": [_finding(f) for f in checkpoint.findings],
        "by": checkpoint.by,
        "estimated": _estimated(checkpoint.estimated) if checkpoint.estimated else None,
        "unconfirmed": checkpoint.unconfirmed or None,
    }


def _estimated(estimated: EstimatedVerdict) -> dict[str, Any]:
    return {
        "verdict": estimated.verdict.value,
        "reason": estimated.reason,
        "peak_nbytes": estimated.peak_nbytes,
        "peak_without_nbytes": estimated.peak_without_nbytes,
        "ratio": estimated.ratio,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "message": finding.message,
        "help": finding.help,
        **_source(finding.source),
        "measured": dict(finding.measured),
    }


def _residual(residual: Residual) -> dict[str, Any]:
    return {
        **_aval(residual.aval),
        **_shard(residual.aval),
        "nbytes": residual.nbytes,
        "trips": residual.trips,
        "origin": _origin(residual.origin),
        "consumers": [_consumer(c) for c in residual.consumers],
        "marks": [mark.value for mark in residual.marks],
    }


def _aval(aval: Aval) -> dict[str, Any]:
    return {"dtype": aval.dtype, "shape": list(aval.shape), "memory": aval.memory}


def _shard(aval: Aval | None) -> dict[str, Any]:
    shard = None if aval is None or aval.shard is None else list(aval.shard)
    return {"shard": shard, "split": aval.spec if aval is not None and aval.spec else None}


def _origin(origin: Origin) -> dict[str, Any]:
    """Return the JSON object of an origin.

    Every kind has every key, so that readers need not ask for the kind first.
    """
    computed = origin if isinstance(origin, Computed) else None
    return {
        "kind": origin.kind,
        "path": getattr(origin, "path", None),
        "value": getattr(origin, "value", None),
        "primitive": computed.primitive if computed else None,
        "name": computed.name if computed else None,
        **_source(computed.source if computed else NOWHERE),
        "named_at": _location(computed.named_at if computed else None),
        "stack": [_location(frame) for frame in computed.stack] if computed else [],
        "within": list(computed.within) if computed else [],
        "through": list(computed.through) if computed else [],
    }


def _source(source: Source) -> dict[str, Any]:
    """Return the JSON keys that say where something comes from.

    They are the same for everything that has a source.
    """
    return {
        "location": _location(source.location),
        "library": _location(source.library),
        "caller": _location(source.caller),
        "scope": source.scope,
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


def _value(value: Variable) -> dict[str, Any]:
    return {
        "name": value.name,
        "aval": _aval(value.aval) if value.aval else None,
        "residual": value.residual,
    }


def _row(row: ComparisonRow) -> dict[str, Any]:
    return {
        "policy": row.policy,
        "at": row.at,
        "kept_nbytes": row.kept_nbytes,
        "host_nbytes": row.host_nbytes,
        "peak_nbytes": row.peak_nbytes,
        "low_nbytes": row.low_nbytes,
        "high_nbytes": row.high_nbytes,
        "recompute_flops": row.recompute_flops,
        "recompute_fraction": row.recompute_fraction,
        "time_fraction": row.time_fraction,
        "low_time_fraction": row.low_time_fraction,
        "high_time_fraction": row.high_time_fraction,
        "pareto": row.pareto,
        "knee": row.knee,
        "error": row.error,
        "uncosted": list(row.uncosted),
        "measured": _timing(row.measured) if row.measured else None,
        "measure_error": row.measure_error,
        "offloading": _offloading(row.offloading) if row.offloading else None,
        "compiled": [_compiled(c) for c in row.compiled],
        "by": row.by,
        "rank_changed": row.rank_changed,
    }


def _compiled(compiled: Compiled) -> dict[str, Any]:
    return {
        "on": compiled.on,
        "policy": compiled.policy,
        "devices": compiled.devices,
        "temp_nbytes": compiled.temp_nbytes,
        "argument_nbytes": compiled.argument_nbytes,
        "output_nbytes": compiled.output_nbytes,
        "alias_nbytes": compiled.alias_nbytes,
        "generated_code_nbytes": compiled.generated_code_nbytes,
        "host_temp_nbytes": compiled.host_temp_nbytes,
        "host_argument_nbytes": compiled.host_argument_nbytes,
        "host_output_nbytes": compiled.host_output_nbytes,
        "host_alias_nbytes": compiled.host_alias_nbytes,
        "peak_nbytes": compiled.peak_nbytes,
        "cublas_peak_nbytes": compiled.cublas_peak_nbytes,
        "cublas_error": compiled.cublas_error,
        "estimate_nbytes": compiled.estimate_nbytes,
        "estimate_low_nbytes": compiled.estimate_low_nbytes,
        "estimate_high_nbytes": compiled.estimate_high_nbytes,
        "profile": compiled.profile,
        "capacity_nbytes": compiled.capacity_nbytes,
        "fits": compiled.fits,
        "seconds": compiled.seconds,
        "cached": compiled.cached,
        "error": compiled.error,
        "compiler": compiled.compiler,
        "buffers": [_compiled_buffer(buffer) for buffer in compiled.buffers],
        "matched_nbytes": compiled.matched_nbytes,
        "live_nbytes": compiled.live_nbytes,
        "collectives": [_collective(collective) for collective in compiled.collectives],
        "notes": list(compiled.notes),
        "warnings": [_compiler_warning(warning) for warning in compiled.warnings],
    }


def _compiler_warning(warning: CompilerWarning) -> dict[str, Any]:
    return {
        "kind": warning.kind,
        "count": warning.count,
        "said": warning.said,
        "nbytes": warning.nbytes,
        "limit_nbytes": warning.limit_nbytes,
        "shape": warning.shape,
        "op_name": warning.op_name,
        **_source(warning.source),
    }


def _compiled_buffer(buffer: CompiledBuffer) -> dict[str, Any]:
    return {
        "kind": buffer.kind,
        "nbytes": buffer.nbytes,
        "count": buffer.count,
        "shape": buffer.shape,
        "opcode": buffer.opcode,
        "memory": buffer.memory,
        "residual": buffer.residual,
        **_source(buffer.source),
    }


def _collective(collective: Collective) -> dict[str, Any]:
    return {
        "opcode": collective.opcode,
        "count": collective.count,
        "nbytes": collective.nbytes,
        "exact": collective.exact,
    }


def _mesh(mesh: Mesh | None) -> dict[str, Any] | None:
    if mesh is None:
        return None
    return {"axes": dict(mesh.axes), "mode": mesh.mode, "source": mesh.source}


def _offloading(offloading: Offloading) -> dict[str, Any]:
    return {
        "kept_nbytes": offloading.kept_nbytes,
        "offloaded_nbytes": offloading.offloaded_nbytes,
        "recomputed_nbytes": offloading.recomputed_nbytes,
        "refetched_nbytes": offloading.refetched_nbytes,
        "added_nbytes": offloading.added_nbytes,
        "kept_without_nbytes": offloading.kept_without_nbytes,
        "to_host_nbytes": offloading.transfers.to_host_nbytes,
        "to_device_nbytes": offloading.transfers.to_device_nbytes,
        "host_arguments": dict(offloading.host_arguments),
        "without_effect": offloading.without_effect,
    }


def _timing(timing: Timing) -> dict[str, Any]:
    error = timing.gradient_error
    return {
        "seconds": timing.seconds,
        "ratio": timing.ratio,
        "low": timing.low,
        "high": timing.high,
        "rounds": timing.rounds,
        # NaN in one and not in the other: JSON has no number for it, and no agreement either.
        "gradient_error": error if error is None or math.isfinite(error) else None,
        "tolerance": timing.tolerance,
        "agrees": timing.agrees,
    }


def _tried_place(tried: TriedPlace) -> dict[str, Any]:
    return {
        "place": tried.place,
        "policies": list(tried.policies),
        "selections": tried.selections,
        "known_selections": tried.known_selections,
        "segments": tried.segments,
    }


def _floor(floor: Floor) -> dict[str, Any]:
    return {
        "nbytes": floor.nbytes,
        "held_nbytes": floor.held_nbytes,
        "parts": [
            {
                "kind": part.kind,
                "nbytes": part.nbytes,
                "arguments": list(part.arguments),
                "until_update": part.until_update,
            }
            for part in floor.parts
        ],
        "reliefs": [
            {
                "kind": relief.kind,
                "change": relief.change,
                "peak_nbytes": relief.peak_nbytes,
                "saved_nbytes": relief.saved_nbytes,
                "answer": relief.answer,
                "confirmed": relief.confirmed,
            }
            for relief in floor.reliefs
        ],
        "without": list(floor.without),
        "left_out": list(floor.left_out),
    }


def _site(site: PlannedSite) -> dict[str, Any]:
    return {
        "kind": site.kind,
        "function": site.function,
        "location": _location(site.location),
        "calls": site.calls,
        "trips": site.trips,
        "changed": site.changed,
        "library": site.library,
        "parts": [_part(part) for part in site.parts],
    }


def _part(part: PlannedPart) -> dict[str, Any]:
    return {
        "calls": part.calls,
        "checkpointed": part.checkpointed,
        "policy": part.policy,
        "values": [_planned_value(value) for value in part.values],
        "segments": list(part.segments),
    }


def _planned_value(value: PlannedValue) -> dict[str, Any]:
    return {
        "name": value.name,
        "action": value.action,
        "nbytes": value.nbytes,
        "expression": _expression(value.expression) if value.expression else None,
    }


def _expression(expression: Expression) -> dict[str, Any]:
    return {
        "file": expression.file,
        "line": expression.line,
        "column": expression.column + 1,
        "end_line": expression.end_line,
        "end_column": expression.end_column + 1,
        "function": expression.function,
        "code": expression.code,
    }
