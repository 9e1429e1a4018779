"""Inline jaxprs into one list of ops, with barriers, bodies of loops and branches kept."""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.call.splits import Split
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.inspector.jaxpr.phases import phase_of
from jaxresid.inspector.jaxpr.primitives import COLLECTIVES, PRIMITIVES
from jaxresid.inspector.program.collectives import written
from jaxresid.inspector.program.ops import Block, InlineContext, Op, Value
from jaxresid.inspector.program.per_device import SPLIT_ANEW
from jaxresid.inspector.program.propagation import PartialSplit
from jaxresid.inspector.program.reading import (
    EqnReading,
    JaxprReader,
    constant_of,
    literal_of,
    value_of,
)
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Pass


@dataclass(frozen=True, slots=True)
class InlinedValues:
    """What is met while jaxprs are inlined.

    Attributes:
      pins: how values are split, where something says so.
      partly: how values are split, with the dims for which nothing says so.
      local: the ops of `shard_map` bodies.
    """

    values: dict[Var, Value] = field(default_factory=dict)
    pins: dict[Value, Split] = field(default_factory=dict)
    partly: dict[Value, PartialSplit] = field(default_factory=dict)
    local: set[Op] = field(default_factory=set)


class Inliner:
    """A builder that inlines jaxprs into one list of ops."""

    def __init__(self, reader: JaxprReader, record: InlinedValues | None = None) -> None:
        self.ops: list[Op] = []
        self._reader = reader
        self._record = record
        self._known: dict[Hashable, tuple[Value, ...]] = {}

    def inline(
        self, jaxpr: Jaxpr, arguments: Sequence[Value], context: InlineContext
    ) -> list[Value]:
        """Add the ops of a jaxpr called with `arguments` (constants first); return its results."""
        steps = self._reader.steps(jaxpr, context.tags)
        env: dict[Any, Value] = dict(zip([*jaxpr.constvars, *jaxpr.invars], arguments, strict=True))
        env.update(steps.literals)
        for step in steps.steps:
            operands = [env[v] for v in step.operands]
            results: Sequence[Value]
            if step.phase is None:
                results = self._results(step.eqn, step.name, operands, context)
            else:
                results = self._add_plain(step, step.phase, operands, context)
            for var, value in zip(step.eqn.outvars, results, strict=True):
                env[var] = value
        if self._record is not None:
            for var, value in env.items():
                if not isinstance(var, int):
                    self._record.values.setdefault(var, value)
        return [literal_of(v) if jax_compat.is_literal(v) else env[v] for v in jaxpr.outvars]

    def _results(
        self, eqn: Eqn, name: str, operands: list[Value], context: InlineContext
    ) -> Sequence[Value]:
        if name == "optimization_barrier":
            return self._barrier(eqn, operands, context, (True,) * len(operands))
        inner = nests(eqn)
        if not inner:
            implementation = None
            if name not in PRIMITIVES:
                implementation = self._reader.implementation(eqn)
            if implementation is not None:
                constants = [constant_of(v) for v in implementation.constvars]
                return self.inline(implementation, [*constants, *operands], context)
            if name == "sharding_constraint" and self._record is not None:
                spec = getattr(jax_compat.params(eqn)["sharding"], "spec", None)
                if spec is None:
                    return operands[:1]
                split = jax_compat.spec_split(spec, len(operands[0].shape))
                free = jax_compat.open_dims(spec)
                return [self._split_anew(eqn, operands[0], split, context, self._record, free)]
            return operands[:1]
        if inner[0].kind == "call":
            return self._call(name, eqn, inner[0], operands, context)
        return self._bodies(name, eqn, inner, operands, context)

    def _split_anew(
        self,
        eqn: Eqn,
        value: Value,
        split: Split,
        context: InlineContext,
        record: InlinedValues,
        free: Set[int] = frozenset(),
    ) -> Value:
        """Return the value split like this, of an op of its own; one that is split so already goes.

        Its operand may be an argument, or constrained otherwise elsewhere. Some dims may be free.
        """
        if value.literal is not None:
            return value
        result = value.copy()
        if free:
            record.partly[result] = split, frozenset(free)
        else:
            record.pins[result] = split
        self.ops.append(Op(SPLIT_ANEW, (value,), (result,), eqn, context, _phase(eqn, context)))
        return result

    def _add_plain(
        self, step: EqnReading, phase: Pass, operands: list[Value], context: InlineContext
    ) -> Sequence[Value]:
        if step.name == "select_n" and len(set(operands[1:])) == 1:
            return operands[1:2]  # as vmap of cond makes of all that a branch reads
        key: Hashable = None
        if step.number is not None:
            same = [v if v.literal is None else (v.literal, v.dtype) for v in operands]
            key = (step.number, *same)
            same_results = self._known.get(key)
            if same_results is not None:
                return same_results
        results = step.results
        results = (results[0].copy(),) if len(results) == 1 else tuple([v.copy() for v in results])
        op = Op(step.name, tuple(operands), results, step.eqn, context, phase)
        if step.name in COLLECTIVES and (exchange := written(op)) is not None:
            op = replace(op, collectives=(exchange,))
        self.ops.append(op)
        if key is not None:
            self._known[key] = results
        return results

    def _barrier(
        self, eqn: Eqn, operands: Sequence[Value], context: InlineContext, held: Sequence[bool]
    ) -> list[Value]:
        """Add a barrier for the operands that are `held`, and return all operands as behind it.

        A compiler may not see through the barrier.
        """
        behind = [v for v, h in zip(operands, held, strict=True) if h and v.literal is None]
        fresh = {v: v.copy() for v in behind}
        if self._record is not None:
            pins, partly = self._record.pins, self._record.partly
            pins.update((fresh[v], pins[v]) for v in behind if v in pins)
            partly.update((fresh[v], partly[v]) for v in behind if v in partly)
        results = tuple(fresh.values())
        self.ops.append(Op("barrier", tuple(fresh), results, eqn, context, _phase(eqn, context)))
        return [fresh.get(v, v) if h else v for v, h in zip(operands, held, strict=True)]

    def _call(
        self, name: str, eqn: Eqn, nest: Nest, operands: list[Value], context: InlineContext
    ) -> list[Value]:
        inside = _inner_context(context, eqn, 0)
        if name == "remat":
            held = _barrier_operands(eqn, len(operands))
            if held is not None:
                operands = self._barrier(eqn, operands, inside, held)
        arguments = [constant_of(v) for v in nest.jaxpr.constvars]
        arguments += [operands[i] for i in nest.operands]
        if name == "shard_map" and self._record is not None:
            return self._inline_shard_map(eqn, nest, arguments, inside, self._record)
        results = self.inline(nest.jaxpr, arguments, inside)
        return self._move_results(eqn, results, context) if name == "jit" else results

    def _move_results(self, eqn: Eqn, results: list[Value], context: InlineContext) -> list[Value]:
        """Return the results of a jit eqn, moved to host memory where its out_shardings say so."""
        for i in jax_compat.host_results(eqn):
            before = results[i]
            if before.memory == "device" and before.literal is None:
                results[i] = replace(before, memory="host")
                put = jax_compat.as_host_put(eqn.outvars[i], eqn)
                phase = _phase(eqn, context)
                self.ops.append(Op("device_put", (before,), (results[i],), put, context, phase))
        return results

    def _inline_shard_map(
        self,
        eqn: Eqn,
        nest: Nest,
        arguments: list[Value],
        context: InlineContext,
        record: InlinedValues,
    ) -> list[Value]:
        """Inline the body of a `shard_map`, and return its results.

        The types in it are those of one device, the types around it those of all devices.
        """
        params = jax_compat.params(eqn)
        constants = len(arguments) - len(nest.operands)
        for i, spec in enumerate(params["in_specs"], constants):
            split = jax_compat.spec_split(spec, len(arguments[i].shape))
            arguments[i] = self._split_anew(eqn, arguments[i], split, context, record)
        start = len(self.ops)
        results = self.inline(nest.jaxpr, arguments, context)
        around: dict[Value, Value] = {}
        inside = {v for op in self.ops[start:] for v in op.results}
        for inner, var, spec in zip(results, eqn.outvars, params["out_specs"], strict=True):
            outer = around.setdefault(inner, value_of(var)) if inner in inside else value_of(var)
            record.pins.setdefault(outer, jax_compat.spec_split(spec, len(outer.shape)))
            # An input that is handed on is that input; as a residual it is split as it comes out.
            record.values.setdefault(var, outer)
        for i in range(start, len(self.ops)):
            op = self.ops[i]
            op = replace(
                op,
                operands=tuple(around.get(v, v) for v in op.operands),
                results=tuple(around.get(v, v) for v in op.results),
            )
            self.ops[i] = op
            record.local.add(op)
        for var, value in list(record.values.items()):
            if value in around:
                record.values[var] = around[value]
        return [around.get(v, v) for v in results]

    def _bodies(
        self,
        name: str,
        eqn: Eqn,
        inner: Sequence[Nest],
        operands: list[Value],
        context: InlineContext,
    ) -> Sequence[Value]:
        blocks = []
        for which, nest in enumerate(inner):
            blocks.append(self._body(nest.jaxpr, _inner_context(context, eqn, which)))
        if inner[0].condition is not None:
            blocks.append(self._body(inner[0].condition, _inner_context(context, eqn, 0)))
        results = tuple(value_of(v) for v in eqn.outvars)
        loop = inner[0] if inner[0].is_loop else None
        phase = _phase(eqn, context)
        op = Op(name, tuple(operands), results, eqn, context, phase, tuple(blocks), loop)
        self.ops.append(op)
        return results

    def _body(self, jaxpr: Jaxpr, context: InlineContext) -> Block:
        build = Inliner(self._reader, self._record)
        constants = [constant_of(v) for v in jaxpr.constvars]
        inputs = [value_of(v) for v in jaxpr.invars]
        outputs = build.inline(jaxpr, [*constants, *inputs], context)
        return Block(tuple(inputs), tuple(build.ops), tuple(outputs))


def _inner_context(context: InlineContext, eqn: Eqn, which: int) -> InlineContext:
    is_remat = jax_compat.primitive_name(eqn) == "remat"
    return InlineContext(
        parent=context,
        eqn=eqn,
        which=which,
        tags=f"{context.tags}/{jax_compat.name_stack(eqn)}",
        remats=(*context.remats, eqn) if is_remat else context.remats,
        top=context.top,
    )


def _barrier_operands(eqn: Eqn, count: int) -> tuple[bool, ...] | None:
    """Return which operands of a remat eqn a barrier holds; None if there is no barrier.

    The legacy implementation has it on the operands of the eqn that recomputes and transposes;
    jax_remat3 has an eqn of its own for it.
    """
    params = jax_compat.params(eqn)
    if not params.get("differentiated", False):
        return None
    prevent = params.get("prevent_cse", True)
    if isinstance(prevent, tuple | list):
        return tuple(bool(p) for p in prevent) if any(prevent) else None
    return (True,) * count if prevent else None


def _phase(eqn: Eqn, context: InlineContext) -> Pass:
    return phase_of(f"{context.tags}/{jax_compat.name_stack(eqn)}")
