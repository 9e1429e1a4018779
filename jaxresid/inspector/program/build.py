"""Turn jaxprs into one program of ops and values, as a compiler sees it.

Calls are inlined, names and casts to the same type are gone, what nothing reads is dropped, and
what is computed twice is computed once, except for what a checkpoint's barrier keeps apart. Loops
and branches keep their bodies. An op leads back to its eqn and the levels around it, so that its
line can be looked up when it is asked for.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jaxresid import jax_compat
from jaxresid.base.errors import RetraceError
from jaxresid.inspector.call.sharding import Sharding
from jaxresid.inspector.call.splits import Split
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.inspector.jaxpr.phases import BACKWARD, RECOMPUTE, phase_of
from jaxresid.inspector.jaxpr.primitives import COLLECTIVES, MARKS, PRIMITIVES, SHARDINGS
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.program.collectives import written
from jaxresid.inspector.program.ops import Block, InlineContext, Op, Value
from jaxresid.inspector.program.per_device import SPLIT_ANEW, per_device
from jaxresid.inspector.program.propagation import PartialSplit
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.jax_compat.jaxpr_types import Aval, Eqn, Jaxpr, Literal, Var
from jaxresid.results import LiveKind, Pass

# More readers than this of one value are not fused; a bound on the search.
_SIBLINGS = 8


# Results that are their operand, under another name.
_SAME = MARKS | SHARDINGS


@dataclass(frozen=True, slots=True)
class ValueRole:
    """What an input or output of a program is.

    Attributes:
      kind: what it is, in the words of `model.LiveValue.kind`.
      path: the pytree path, for an argument.
      donated: whether an output may take over its buffer.
    """

    kind: LiveKind
    path: str | None = None
    donated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A whole computation.

    Attributes:
      block: its inputs are the arguments and constants, its outputs what is returned.
      inputs, outputs: the roles of the block's inputs and outputs.
      residuals: what autodiff keeps, where the program was put together from two passes.
      sharding: how it is split over a mesh; None if it is for one device.
      values: on a mesh, the values of its jaxprs' variables; for a jaxpr that is called more than
        once, those in the first call.
      trips: the trips of its while loops.
    """

    block: Block
    inputs: tuple[ValueRole, ...]
    outputs: tuple[ValueRole, ...]
    residuals: frozenset[Value] = frozenset()
    sharding: Sharding | None = None
    values: Mapping[Var, Value] = field(default_factory=dict)
    trips: WhileTrips = field(default_factory=WhileTrips)


def value_and_gradients(traced: Trace) -> Program:
    """Return the program of a function's value and gradients."""
    forward, backward = traced.forward, traced.backward
    sharding = traced.sharding
    record = None if sharding is None else _InlinedValues()
    build = _Builder(JaxprReader(), record)
    inputs = [_value(v) for v in [*forward.constvars, *forward.invars]]
    made = build.inline(forward, inputs, InlineContext(tags="jvp(", top=forward))
    primal, kept = made[: traced.num_outputs], made[traced.num_outputs :]
    paths = [None] * len(forward.constvars) + list(traced.inputs)
    # What leads the residuals are constants; what follows them are cotangents.
    lead = len(backward.invars) - traced.num_cotangents - len(kept)
    extra = [_value(v) for v in [*backward.constvars, *backward.invars[:lead]]]
    cotangents = [_cotangent(v) for v in backward.invars[lead + len(kept) :]]
    arguments = [*extra, *kept, *cotangents]
    gradients = build.inline(
        backward, arguments, InlineContext(tags="transpose(jvp(", top=backward)
    )
    extra += [v for v in cotangents if v.literal is None]
    block = Block((*inputs, *extra), tuple(build.ops), (*primal, *gradients))
    values: Mapping[Var, Value] = {}
    if sharding is not None and record is not None:
        # What users run returns them split as the parameters that they update.
        leading = forward.invars[len(forward.invars) - len(traced.arguments.dynamic) :]
        for var, gradient in zip(leading, gradients, strict=False):
            if gradient.literal is None and len(gradient.shape) == len(_value(var).shape):
                record.pins[gradient] = sharding.inputs[var]
        block, values = _of_one_device(block, record, sharding, inputs)
        pairs = zip(traced.kept, kept, strict=True)
        kept = [made if jax_compat.is_literal(v) else values[v] for v, made in pairs]
    roles = [
        ValueRole("constant") if path is None else ValueRole("argument", path) for path in paths
    ]
    return Program(
        block=pruned(block),
        inputs=(*roles, *(ValueRole("constant") for _ in extra)),
        outputs=(
            *(ValueRole("output") for _ in primal),
            *(ValueRole("gradient") for _ in gradients),
        ),
        residuals=frozenset(kept),
        sharding=sharding,
        values=values,
        trips=traced.trips,
    )


def program_of_jaxpr(
    jaxpr: Jaxpr,
    inputs: Sequence[ValueRole],
    outputs: Sequence[ValueRole],
    *,
    as_written: bool = False,
    sharding: Sharding | None = None,
    reader: JaxprReader | None = None,
    trips: WhileTrips | None = None,
) -> Program:
    """Return the program of an open jaxpr as it stands.

    Args:
      jaxpr: the open jaxpr.
      inputs: the roles of its constants and arguments, in this order.
      outputs: the roles of its outputs.
      as_written: leave checkpoint_names as ops, and what is computed twice.
      sharding: how it is split over a mesh; None for one device.
      reader: what has read other programs, not `as_written`, that share eqns with this one.
      trips: the trips of its while loops; None: those that they say themselves.
    """
    record = None if sharding is None else _InlinedValues()
    build = _Builder(reader or JaxprReader(as_written=as_written), record)
    arguments = [_value(v) for v in [*jaxpr.constvars, *jaxpr.invars]]
    made = build.inline(jaxpr, arguments, InlineContext(top=jaxpr))
    block = Block(tuple(arguments), tuple(build.ops), tuple(made))
    values: Mapping[Var, Value] = {}
    if sharding is not None and record is not None:
        block, values = _of_one_device(block, record, sharding, arguments)
    return Program(
        pruned(block),
        tuple(inputs),
        tuple(outputs),
        sharding=sharding,
        values=values,
        trips=WhileTrips() if trips is None else trips,
    )


def _of_one_device(
    block: Block, record: _InlinedValues, sharding: Sharding, inputs: Sequence[Value]
) -> tuple[Block, Mapping[Var, Value]]:
    """Return the block as one device of a mesh runs it, and the values of the variables there.

    Args:
      block: the block of the whole program.
      record: what was met while its jaxprs were inlined.
      sharding: how it is split over the mesh.
      inputs: constants and arguments; what is not an argument of the user's is on every device.
    """
    pins: dict[Value, Split] = {}
    for var, value in record.values.items():
        split = sharding.inputs.get(var)
        if split is None:
            split = jax_compat.typed_split(var.aval)
        if split is not None and value.literal is None and len(split) == len(value.shape):
            pins.setdefault(value, split)
    for value in inputs:
        pins.setdefault(value, ((),) * len(value.shape))
    pins = {**record.pins, **pins}
    local = frozenset(record.local)
    known = {v: split for var, split in sharding.known.items() if (v := record.values.get(var))}
    made, find = per_device(block, pins, known, sharding.sizes, local, record.partly)
    return made, {var: find(value) for var, value in record.values.items()}


@dataclass(frozen=True, slots=True)
class _InlinedValues:
    """What is met while jaxprs are inlined.

    Attributes:
      values: the values of their variables.
      pins: how values are split, where something says so.
      partly: how values are split, with the dims for which nothing says so.
      local: the ops of `shard_map` bodies.
    """

    values: dict[Var, Value] = field(default_factory=dict)
    pins: dict[Value, Split] = field(default_factory=dict)
    partly: dict[Value, PartialSplit] = field(default_factory=dict)
    local: set[Op] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Step:
    """What is known of an eqn wherever its jaxpr is called.

    Attributes:
      eqn: the eqn.
      name: its primitive.
      operands: what it reads: variables, and the ids of literals.
      literals: the literals among them, each with a value like it.
      number: what makes two plain eqns on equal operands equal; None if nothing does.
      phase: the phase of a plain eqn; None for one that is no op of its own, or has bodies.
      results: a value like each of its results, for a plain eqn.
    """

    eqn: Final[Eqn]
    name: Final[str]
    operands: Final[tuple[Var | int, ...]]
    literals: Final[tuple[tuple[Literal, Value], ...]] = ()
    number: Final[int | None] = None
    phase: Final[Pass | None] = None
    results: Final[tuple[Value, ...]] = ()


@dataclass(frozen=True, slots=True)
class _Steps:
    """The eqns of a jaxpr, read once.

    Attributes:
      jaxpr: the jaxpr, which is kept: it is found by its id.
      steps: its eqns in order.
      literals: the literals that they read, by their ids.
    """

    jaxpr: Jaxpr
    steps: tuple[_Step, ...]
    literals: Mapping[Any, Value]


def implementation(eqn: Eqn) -> Jaxpr | None:
    """Return what a primitive of a library's own does, as `jax_compat.implementation`.

    Raises:
      RetraceError: the library's Python cannot be traced.
    """
    with retracing(f"the Python of {jax_compat.primitive_name(eqn)}"):
        closed = jax_compat.implementation(eqn)
    return None if closed is None else jax_compat.open_jaxpr(closed)


class JaxprReader:
    """A reader of jaxprs that looks at each jaxpr, and each eqn, once for all programs.

    Layers share what they call, and variants of a step most of what is done with its gradients.

    Args:
      as_written: whether to leave checkpoint_names as ops, and what is computed twice.
    """

    def __init__(self, *, as_written: bool = False) -> None:
        self.as_written = as_written
        self._steps: dict[tuple[int, str], _Steps] = {}
        # By the name stacks, and by the id of an eqn, which is kept.
        self._eqns: dict[str, dict[int, _Step]] = {}
        # By the id of an aval, which is kept: JAX gives one to many variables.
        self._types: dict[int, tuple[Aval, Value]] = {}
        self._numbers: dict[Hashable, int] = {}
        # By the id of an eqn, which is kept.
        self._implementations: dict[int, tuple[Eqn, Jaxpr | None]] = {}

    def steps(self, jaxpr: Jaxpr, tags: str) -> _Steps:
        """Return the eqns of a jaxpr that is called under these name stacks."""
        found = self._steps.get((id(jaxpr), tags))
        if found is None:
            known = self._eqns.setdefault(tags, {})
            steps = tuple([known.get(id(eqn)) or self._step(eqn, tags) for eqn in jaxpr.eqns])
            literals = {id(v): made.copy() for step in steps for v, made in step.literals}
            found = self._steps[id(jaxpr), tags] = _Steps(jaxpr, steps, literals)
        return found

    def _step(self, eqn: Eqn, tags: str) -> _Step:
        step = self._eqns[tags][id(eqn)] = self._read(eqn, tags)
        return step

    def _read(self, eqn: Eqn, tags: str) -> _Step:
        name = jax_compat.primitive_name(eqn)
        literals = tuple([(v, _literal(v)) for v in eqn.invars if jax_compat.is_literal(v)])
        operands: tuple[Var | int, ...] = tuple(eqn.invars)
        if literals:
            operands = tuple([id(v) if jax_compat.is_literal(v) else v for v in eqn.invars])
        if not (name == "name" and self.as_written) and (
            name in _SAME
            or name == "optimization_barrier"
            or (name in _MAYBE_SAME and _MAYBE_SAME[name](eqn))
            or nests(eqn)
            or (name not in PRIMITIVES and self.implementation(eqn) is not None)
        ):
            return _Step(eqn, name, operands, literals)
        phase = phase_of(f"{tags}/{jax_compat.name_stack(eqn)}")
        results = tuple([self._type(v) for v in eqn.outvars])
        return _Step(eqn, name, operands, literals, self._number(eqn, name), phase, results)

    def implementation(self, eqn: Eqn) -> Jaxpr | None:
        """Return what a primitive of a library's own does; None where that is not known."""
        known = self._implementations.get(id(eqn))
        if known is None:
            made = None
            with contextlib.suppress(RetraceError):
                made = implementation(eqn)
            known = self._implementations[id(eqn)] = eqn, made
        return known[1]

    def _type(self, var: Var) -> Value:
        aval = var.aval
        known = self._types.get(id(aval))
        if known is None:
            known = self._types[id(aval)] = aval, _value(var)
        return known[1]

    def _number(self, eqn: Eqn, name: str) -> int | None:
        if self.as_written or eqn.effects:
            return None
        # What a primitive makes follows from its operands and params, which it orders. A number
        # has its hash at hand.
        try:
            key = (name, *jax_compat.params(eqn).items())
            return self._numbers.setdefault(key, len(self._numbers))
        except TypeError:
            return None


class _Builder:
    """A builder that inlines jaxprs into one list of ops."""

    def __init__(self, reader: JaxprReader, record: _InlinedValues | None = None) -> None:
        self.ops: list[Op] = []
        self._reader = reader
        self._record = record
        self._known: dict[Hashable, tuple[Value, ...]] = {}

    def inline(
        self, jaxpr: Jaxpr, arguments: Sequence[Value], context: InlineContext
    ) -> list[Value]:
        """Add the ops of a jaxpr called with `arguments` (constants first); return its results."""
        read = self._reader.steps(jaxpr, context.tags)
        env: dict[Any, Value] = dict(zip([*jaxpr.constvars, *jaxpr.invars], arguments, strict=True))
        env.update(read.literals)
        for step in read.steps:
            operands = [env[v] for v in step.operands]
            results: Sequence[Value]
            if step.phase is None:
                results = self._results(step.eqn, step.name, operands, context)
            else:
                results = self._add_plain(step, step.phase, operands, context)
            for var, made in zip(step.eqn.outvars, results, strict=True):
                env[var] = made
        if self._record is not None:
            for var, made in env.items():
                if not isinstance(var, int):
                    self._record.values.setdefault(var, made)
        return [_literal(v) if jax_compat.is_literal(v) else env[v] for v in jaxpr.outvars]

    def _results(
        self, eqn: Eqn, name: str, operands: list[Value], context: InlineContext
    ) -> Sequence[Value]:
        """Return the results of an eqn that is no op of its own, or has bodies."""
        if name == "optimization_barrier":
            return self._barrier(eqn, operands, context, (True,) * len(operands))
        inner = nests(eqn)
        if not inner:
            implementation = None
            if name not in PRIMITIVES:
                implementation = self._reader.implementation(eqn)
            if implementation is not None:
                constants = [_constant(v) for v in implementation.constvars]
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
        record: _InlinedValues,
        free: Set[int] = frozenset(),
    ) -> Value:
        """Return the value split like this, of an op of its own; one that is split so already goes.

        Its operand may be an argument, or constrained otherwise elsewhere. Some dims may be free.
        """
        if value.literal is not None:
            return value
        made = value.copy()
        if free:
            record.partly[made] = split, frozenset(free)
        else:
            record.pins[made] = split
        self._add(Op(SPLIT_ANEW, (value,), (made,), eqn, context, _phase(eqn, context)))
        return made

    def _add_plain(
        self, step: _Step, phase: Pass, operands: list[Value], context: InlineContext
    ) -> Sequence[Value]:
        if step.name == "select_n" and len(set(operands[1:])) == 1:
            return operands[1:2]  # as vmap of cond makes of all that a branch reads
        key: Hashable = None
        if step.number is not None:
            same = [v if v.literal is None else (v.literal, v.dtype) for v in operands]
            key = (step.number, *same)
            known = self._known.get(key)
            if known is not None:
                return known
        results = step.results
        results = (results[0].copy(),) if len(results) == 1 else tuple([v.copy() for v in results])
        op = Op(step.name, tuple(operands), results, step.eqn, context, phase)
        if step.name in COLLECTIVES and (exchange := written(op)) is not None:
            op = replace(op, collectives=(exchange,))
        self._add(op)
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
        self._add(Op("barrier", tuple(fresh), results, eqn, context, _phase(eqn, context)))
        return [fresh.get(v, v) if h else v for v, h in zip(operands, held, strict=True)]

    def _call(
        self, name: str, eqn: Eqn, nest: Nest, operands: list[Value], context: InlineContext
    ) -> list[Value]:
        inside = _inner_context(context, eqn, 0)
        if name == "remat":
            held = _barrier_operands(eqn, len(operands))
            if held is not None:
                operands = self._barrier(eqn, operands, inside, held)
        arguments = [_constant(v) for v in nest.jaxpr.constvars]
        arguments += [operands[i] for i in nest.operands]
        if name == "shard_map" and self._record is not None:
            return self._inline_shard_map(eqn, nest, arguments, inside, self._record)
        made = self.inline(nest.jaxpr, arguments, inside)
        return self._move_results(eqn, made, context) if name == "jit" else made

    def _move_results(self, eqn: Eqn, made: list[Value], context: InlineContext) -> list[Value]:
        """Return the results of a jit eqn, moved to host memory where its out_shardings say so."""
        for i in jax_compat.host_results(eqn):
            before = made[i]
            if before.memory == "device" and before.literal is None:
                made[i] = replace(before, memory="host")
                put = jax_compat.as_host_put(eqn.outvars[i], eqn)
                phase = _phase(eqn, context)
                self._add(Op("device_put", (before,), (made[i],), put, context, phase))
        return made

    def _inline_shard_map(
        self,
        eqn: Eqn,
        nest: Nest,
        arguments: list[Value],
        context: InlineContext,
        record: _InlinedValues,
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
        made = {v for op in self.ops[start:] for v in op.results}
        for inner, var, spec in zip(results, eqn.outvars, params["out_specs"], strict=True):
            outer = around.setdefault(inner, _value(var)) if inner in made else _value(var)
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
        if name == "while":
            cond = jax_compat.open_jaxpr(jax_compat.params(eqn)["cond_jaxpr"])
            blocks.append(self._body(cond, _inner_context(context, eqn, 0)))
        results = tuple(_value(v) for v in eqn.outvars)
        loop = inner[0] if inner[0].kind in ("scan", "while") else None
        phase = _phase(eqn, context)
        self._add(Op(name, tuple(operands), results, eqn, context, phase, tuple(blocks), loop))
        return results

    def _add(self, op: Op) -> None:
        self.ops.append(op)

    def _body(self, jaxpr: Jaxpr, context: InlineContext) -> Block:
        return _body(_Builder(self._reader, self._record), jaxpr, context)


def _body(build: _Builder, jaxpr: Jaxpr, context: InlineContext) -> Block:
    constants = [_constant(v) for v in jaxpr.constvars]
    inputs = [_value(v) for v in jaxpr.invars]
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


def _value(var: Var) -> Value:
    shape, dtype, itemsize, memory = _described(var.aval)
    return Value(shape, dtype, itemsize, memory)


def _cotangent(var: Var) -> Value:
    """Return the value of a cotangent: the number 1 for a scalar's, an argument for any other."""
    made = _value(var)
    return replace(made, literal="1.0") if made.size == 1 else made


def _literal(var: Literal) -> Value:
    shape, dtype, itemsize, memory = _described(var.aval)
    return Value(shape, dtype, itemsize, memory, jax_compat.literal_text(var))


def _constant(var: Var) -> Value:
    """Return the value of a nested jaxpr's constant.

    The executable holds it as it does a literal.
    """
    return replace(_value(var), literal=f"constant {id(var)}")


def _described(aval: Aval) -> tuple[tuple[int, ...], str, int, str]:
    dtype = getattr(aval, "dtype", None)
    if dtype is None:  # a token or a ref
        return (), str(aval), 0, "device"
    return (tuple(map(int, aval.shape)), *_dtype(dtype), jax_compat.memory_space(aval))


@functools.cache
def _dtype(dtype: Any) -> tuple[str, int]:
    return getattr(dtype, "name", str(dtype)), int(dtype.itemsize)


def _same_precision(eqn: Eqn) -> bool:
    """Return whether a reduce_precision keeps every bit.

    Legacy remat puts one on each float it saves.
    """
    params = jax_compat.params(eqn)
    finfo = jax_compat.import_jax().numpy.finfo(eqn.invars[0].aval.dtype)
    return bool(params["exponent_bits"] >= finfo.nexp and params["mantissa_bits"] >= finfo.nmant)


def _same_type(eqn: Eqn) -> bool:
    a, b = eqn.invars[0].aval, eqn.outvars[0].aval
    return bool(a.dtype == b.dtype and getattr(a, "shape", None) == getattr(b, "shape", None))


_MAYBE_SAME: dict[str, Callable[[Eqn], bool]] = {
    "reduce_precision": _same_precision,
    "convert_element_type": _same_type,
    "reshape": _same_type,
    "copy": _same_type,
}


def all_ops(ops: Sequence[Op]) -> list[Op]:
    """Return the ops and those in their bodies."""
    found = list(ops)
    for op in ops:
        for body in op.bodies:
            found += all_ops(body.ops)
    return found


def pruned(block: Block, *, is_body: bool = False) -> Block:
    """Return the block without ops, and its loops without results, that nothing reads."""
    return _scheduled(_needed(block), is_body)


def _scheduled(block: Block, is_body: bool) -> Block:
    """Return the block with what is recomputed where a compiler's scheduler puts it.

    The jaxpr recomputes all of a checkpoint's region first. A scheduler does not: of a whole
    function under dots_saveable, each layer's elementwise values are made when the backward pass
    comes to that layer. A chain of them is still recomputed at once, as its last value is read
    first. Where no barrier holds it back, recomputation belongs to the forward pass.
    """
    if all(op.phase != RECOMPUTE or op.name == "barrier" for op in block.ops):
        return block
    late = set(block.inputs) if is_body else set()
    place: dict[Value, int] = {}
    order: list[tuple[int, int, int, bool]] = []
    for i, op in enumerate(block.ops):
        recomputes = op.phase == RECOMPUTE and op.name != "barrier"
        held = not late.isdisjoint(op.operands)
        at = i
        if op.phase in (RECOMPUTE, BACKWARD) and (held or not recomputes):
            late.update(op.results)
        elif recomputes:
            at = max([place.get(v, -1) for v in op.operands], default=-1)
        order.append((at, int(at != i), i, recomputes and held))
        for v in op.results:
            place[v] = at
    order.sort()
    return _placed_before_readers(
        Block(block.inputs, tuple(block.ops[i] for _, _, i, _ in order), block.outputs),
        [waits for *_, waits in order],
    )


def _placed_before_readers(block: Block, waits: Sequence[bool]) -> Block:
    """Return the block with the ops that wait placed right before what reads them.

    Those that read one value are made together where that is its last use: a compiler fuses them.
    """
    if not any(waits):
        return block
    makers = {v: i for i, op in enumerate(block.ops) for v in op.results}
    waiting = {v: i for v, i in makers.items() if waits[i]}
    readers: dict[Value, list[int]] = {}
    for i, op in enumerate(block.ops):
        for v in op.operands:
            readers.setdefault(v, []).append(i)
    done: set[int] = set()
    ops: list[Op] = []

    def missing(i: int) -> list[int]:
        found = {waiting[v] for v in block.ops[i].operands if v in waiting} - done
        return sorted(found, reverse=True)

    def is_ready(i: int) -> bool:
        return done.issuperset([makers[v] for v in block.ops[i].operands if v in makers])

    def emit(i: int) -> None:
        done.add(i)
        ops.append(block.ops[i])

    def run(first: int) -> None:
        stack = [first]
        while stack:
            at = stack[-1]
            if at in done:
                stack.pop()
                continue
            left = missing(at)
            if left:
                stack += left
                continue
            emit(stack.pop())
            if not waits[at]:
                continue
            for v in block.ops[at].operands:
                if len(readers[v]) > _SIBLINGS:
                    continue
                rest = [i for i in readers[v] if i not in done]
                if rest and all(waits[i] and is_ready(i) for i in rest):
                    for i in rest:
                        emit(i)

    for i, op in enumerate(block.ops):
        if waits[i]:
            continue
        if waiting.keys().isdisjoint(op.operands):
            emit(i)
        else:
            run(i)
    for i in range(len(block.ops)):
        if waits[i]:
            run(i)
    return Block(block.inputs, tuple(ops), block.outputs)


def _needed(block: Block) -> Block:
    needed = {v for v in block.outputs if v.literal is None}
    kept: list[Op] = []
    for op in reversed(block.ops):
        if needed.isdisjoint(op.results) and not getattr(op.eqn, "effects", None):
            continue
        trimmed = _trimmed(op, needed) if op.bodies or op.name == "barrier" else op
        needed.update(trimmed.operands)
        kept.append(trimmed)
    return Block(block.inputs, tuple(reversed(kept)), block.outputs)


def _trimmed(op: Op, needed: set[Value]) -> Op:
    """Return the op with only those of its results that are needed, where it can do with less."""
    if op.name == "barrier":
        return _trim_barrier(op, needed)
    if op.is_loop:
        return _trim_loop(op, needed)
    return _trim_branches(op, needed) if op.bodies else op


def _trim_barrier(op: Op, needed: set[Value]) -> Op:
    # All of a barrier's operands wait for each other, whether or not they are read behind it; but
    # a compiler drops those that are not.
    pairs = [(a, b) for a, b in zip(op.operands, op.results, strict=True) if b in needed]
    return replace(op, operands=tuple(a for a, _ in pairs), results=tuple(b for _, b in pairs))


def _trim_loop(op: Op, needed: set[Value]) -> Op:
    """Return the loop with only those results that are read, outside or by its own next trip."""
    nest, body = op.nest, op.bodies[0]
    assert nest is not None
    carries = nest.carries
    live = {i for i, v in enumerate(op.results) if v in needed}
    entering = {out: inner for inner, out in carries.items()}
    condition = set()
    if len(op.bodies) > 1:  # the condition reads carries of its own
        read = _reads(op.bodies[1])
        count = len(op.bodies[1].inputs) - len(body.outputs)
        condition = {i for i in range(len(body.outputs)) if op.bodies[1].inputs[count + i] in read}
        live |= condition
    while True:
        trimmed = pruned(replace(body, outputs=_only(body.outputs, live)), is_body=True)
        read = _reads(trimmed)
        more = {
            out for out, inner in entering.items() if out not in live and body.inputs[inner] in read
        }
        if not more:
            break
        live |= more
    used = {i for i, v in enumerate(body.inputs) if v in read}
    used |= {entering[i] for i in live if i in entering}
    inputs = [i for i in range(len(body.inputs)) if i in used]
    outputs = [i for i in range(len(body.outputs)) if i in live]
    place = {old: new for new, old in enumerate(inputs)}
    out_place = {old: new for new, old in enumerate(outputs)}
    block = Block(
        tuple(body.inputs[i] for i in inputs),
        trimmed.ops,
        tuple(body.outputs[i] for i in outputs),
    )
    operands = [nest.operands[i] for i in inputs]
    condition_operands: tuple[Value, ...] = ()
    if len(op.bodies) > 1:
        condition_operands = op.operands[: op.params["cond_nconsts"]]
    made = replace(
        nest,
        operands=tuple(range(len(inputs))),
        results=tuple(range(len(outputs))),
        carries={
            place[inner]: out_place[out] for inner, out in carries.items() if out in out_place
        },
        slices=frozenset(place[i] for i in nest.slices if i in place),
        stacked=frozenset(out_place[i] for i in nest.stacked if i in out_place),
    )
    return replace(
        op,
        operands=(*(op.operands[i] for i in operands), *condition_operands),
        results=tuple(op.results[i] for i in outputs),
        bodies=(block, *op.bodies[1:]),
        nest=made,
    )


def _only(outputs: Sequence[Value], live: Iterable[int]) -> tuple[Value, ...]:
    chosen = set(live)
    return tuple(v for i, v in enumerate(outputs) if i in chosen)


def _reads(block: Block) -> set[Value]:
    read = {v for op in block.ops for v in op.operands}
    return read.union(block.outputs)


def _trim_branches(op: Op, needed: set[Value]) -> Op:
    live = [i for i, v in enumerate(op.results) if v in needed]
    blocks = tuple(
        pruned(replace(b, outputs=tuple(b.outputs[i] for i in live)), is_body=True)
        for b in op.bodies
    )
    return replace(op, results=tuple(op.results[i] for i in live), bodies=blocks)
