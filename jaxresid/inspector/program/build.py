"""Turn jaxprs into one program of ops and values, as a compiler sees it.

Calls are inlined, names and casts to the same type are gone, what nothing reads is dropped, and
what is computed twice is computed once, except for what a checkpoint's barrier keeps apart. Loops
and branches keep their bodies. An op leads back to its eqn and the levels around it, so that its
line can be looked up when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxresid import jax_compat
from jaxresid.inspector.call.sharding import Sharding
from jaxresid.inspector.call.splits import Split
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.program.inlining import InlinedValues, Inliner
from jaxresid.inspector.program.ops import Block, InlineContext, Value
from jaxresid.inspector.program.per_device import per_device
from jaxresid.inspector.program.pruning import pruned
from jaxresid.inspector.program.reading import JaxprReader, value_of
from jaxresid.inspector.trace.function import Trace
from jaxresid.jax_compat.jaxpr_types import Jaxpr, Var
from jaxresid.results import LiveKind


@dataclass(frozen=True, slots=True)
class ValueRole:
    """What an input or output of a program is.

    Attributes:
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
      residuals: what autodiff keeps, where the program was put together from two passes.
      values: on a mesh, the values of its jaxprs' variables; for a jaxpr that is called more than
        once, those in the first call.
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
    record = None if sharding is None else InlinedValues()
    build = Inliner(JaxprReader(), record)
    inputs = [value_of(v) for v in [*forward.constvars, *forward.invars]]
    results = build.inline(forward, inputs, InlineContext(tags="jvp(", top=forward))
    primal, kept = results[: traced.num_outputs], results[traced.num_outputs :]
    paths = [None] * len(forward.constvars) + list(traced.inputs)
    # What leads the residuals are constants; what follows them are cotangents.
    lead = len(backward.invars) - traced.num_cotangents - len(kept)
    extra = [value_of(v) for v in [*backward.constvars, *backward.invars[:lead]]]
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
            if gradient.literal is None and len(gradient.shape) == len(value_of(var).shape):
                record.pins[gradient] = sharding.inputs[var]
        block, values = _of_one_device(block, record, sharding, inputs)
        pairs = zip(traced.kept, kept, strict=True)
        kept = [results if jax_compat.is_literal(v) else values[v] for v, results in pairs]
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
      inputs: the roles of its constants and arguments, in this order.
      as_written: leave checkpoint_names as ops, and what is computed twice.
      reader: what has read other programs, not `as_written`, that share eqns with this one.
      trips: the trips of its while loops; None: those that they say themselves.
    """
    record = None if sharding is None else InlinedValues()
    build = Inliner(reader or JaxprReader(as_written=as_written), record)
    arguments = [value_of(v) for v in [*jaxpr.constvars, *jaxpr.invars]]
    results = build.inline(jaxpr, arguments, InlineContext(top=jaxpr))
    block = Block(tuple(arguments), tuple(build.ops), tuple(results))
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
    block: Block, record: InlinedValues, sharding: Sharding, inputs: Sequence[Value]
) -> tuple[Block, Mapping[Var, Value]]:
    """Return the block as one device of a mesh runs it, and the values of the variables there.

    Args:
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
    shapes = {v: split for var, split in sharding.known.items() if (v := record.values.get(var))}
    local_block, find = per_device(block, pins, shapes, sharding.sizes, local, record.partly)
    return local_block, {var: find(value) for var, value in record.values.items()}


def _cotangent(var: Var) -> Value:
    """Return the value of a cotangent: the number 1 for a scalar's, an argument for any other."""
    value = value_of(var)
    return replace(value, literal="1.0") if value.size == 1 else value
