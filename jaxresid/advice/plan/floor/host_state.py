"""A training step whose optimizer state stays in host memory but for the update of each array.

XLA begins with what it fetches of arguments wherever the fetch is written, on a TPU with barriers
before it as well: then all of the state is on the device at once. The branch of a `cond` holds it
off. So the update is taken apart into what has no part in each other, as the arrays of most
optimizers' parameters have not, and each part fetches its state, updates, and puts it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.call.leaves import is_array, is_inexact, like
from jaxresid.inspector.jaxpr.inline import with_calls_inlined
from jaxresid.inspector.jaxpr.phases import UPDATE, Passes
from jaxresid.inspector.program.step_roles import OPTIMIZER_STATE, Roles, next_values, roles
from jaxresid.inspector.trace.jitted import jitted_with, operands
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

# Of the state's bytes; a smaller array stays on the device: a counter, the state of a bias.
_WORTH_MOVING = 0.001


@dataclass(frozen=True, slots=True)
class HostState:
    """A step with its optimizer state in host memory.

    Attributes:
      step: the trace of it.
      roles: the roles of its inputs and outputs.
      paths: the paths of what is in host memory.
      count: into how many parts the update is taken apart.
      part: how much of the state the biggest part fetches, from 0 to 1.
    """

    step: StepTrace
    roles: Roles
    paths: tuple[str, ...]
    count: int
    part: float


def _state_inputs(step: StepTrace, known: Roles, nexts: Mapping[int, Set[int]]) -> dict[int, int]:
    """Return the arrays of a step's optimizer state that may be in host memory.

    Each is the number of an input, with that of the output that is its next value. Those that are
    small beside the rest are left out, and those in host memory already.
    """
    inputs = known[0][-len(step.inputs) :]
    state = [i for i, role in enumerate(inputs) if role.kind == OPTIMIZER_STATE]
    least = _WORTH_MOVING * sum(map(_nbytes, (step.jaxpr.invars[i] for i in state)))
    found = {}
    for i in state:
        var = step.jaxpr.invars[i]
        if len(nexts.get(i, ())) != 1 or not var.aval.shape or _nbytes(var) < least:
            continue
        (j,) = nexts[i]
        is_same = var.aval.dtype == step.jaxpr.outvars[j].aval.dtype
        if is_same and jax_compat.memory_space(var.aval) == "device":
            found[i] = j
    return found


def with_host_state(step: StepTrace) -> HostState | str:
    """Return a step with its optimizer state in host memory, or why it is left as it is.

    Nothing of the user's code runs again.

    Raises:
      Exception: Whatever JAX raises.
    """
    jax = jax_compat.import_jax()
    if step.jaxpr.effects or step.arguments.refs:
        return "the step changes Refs, or has other effects"
    if not jax_compat.tells_memory():
        return "before 0.7.2 JAX does not tell what is in host memory"
    known, nexts = roles(step), next_values(step)
    state = _state_inputs(step, known, nexts)
    if not state:
        return "no array of an optimizer's state was found on the device"
    if any(each is not None for given in jitted_with(step.jaxpr) for each in given):
        return "the step is jitted with shardings of its own"
    closed = jax_compat.with_constants_as_inputs(step.closed)
    passes = Passes()
    flat = with_calls_inlined(
        jax_compat.open_jaxpr(closed), lambda eqn: passes.of(eqn) not in ("forward", "backward")
    )
    consts, front = list(step.closed.consts), len(flat.invars) - len(step.inputs)
    taken = _taken_apart(
        flat,
        {flat.invars[front + i]: flat.outvars[j] for i, j in state.items()},
        {flat.outvars[j]: flat.invars[front + i] for i, outputs in nexts.items() for j in outputs},
        passes,
    )
    if taken is None:
        return "the state's next value is made of something else"
    call, lead = step.arguments, len(step.inputs) - len(step.arguments.dynamic)
    leaves, host = list(call.leaves), jax_compat.host_sharding()
    moved = {
        i
        for i in state
        if flat.invars[front + i] in taken.moved and is_array(leaves[call.dynamic[i - lead]])
    }
    for i in moved:
        leaf = leaves[call.dynamic[i - lead]]
        own = host if call.mesh is None else leaf.sharding.with_memory_kind("pinned_host")
        leaves[call.dynamic[i - lead]] = like(leaf, leaf.shape, leaf.dtype, own)
    call = replace(call, leaves=tuple(leaves))
    given = operands(step.jaxpr, [leaves[i] for i in call.dynamic])
    with jax_compat.in_mesh(call.context):
        traced = jax.jit(lambda values: taken.run([*consts, *values])).trace(given)
    made = replace(step, arguments=call, closed=traced.jaxpr)
    paths = tuple(step.inputs[i] or "" for i in sorted(moved))
    sizes = [sum(_nbytes(v) for v in part.reads if v in taken.moved) for part in taken.parts]
    return HostState(made, known, paths, len(sizes), max(sizes) / sum(sizes))


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The update of what has no part in the rest of the state.

    Attributes:
      eqns: its eqns.
      reads: what they read of what is around them.
      makes: what they make that the step returns.
    """

    eqns: tuple[Eqn, ...]
    reads: tuple[Var, ...]
    makes: tuple[Var, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _TakenApart:
    """A step's jaxpr, with the updates of its state apart.

    Attributes:
      flat: the jaxpr.
      before: the eqns that are in no part.
      parts: the parts.
      moved: the inputs that are in host memory.
      given: what a part makes -> the input of which that is the next value.
    """

    flat: Jaxpr
    before: tuple[Eqn, ...]
    parts: tuple[_Part, ...]
    moved: frozenset[Var]
    given: Mapping[Var, Var]

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Return the step's outputs, for all inputs of the jaxpr, while JAX traces it."""
        known = dict(zip(self.flat.invars, values, strict=True))
        made = {v for eqn in self.before for v in eqn.outvars}
        wanted = [v for part in self.parts for v in part.reads if v in made]
        outputs = [v for v in self.flat.outvars if not jax_compat.is_literal(v)]
        wanted = list(dict.fromkeys([*wanted, *(v for v in outputs if v in made)]))
        reads = [v for v in self.flat.invars if v not in self.moved]
        run = self._function(reads, self.before, wanted)
        known |= zip(wanted, run(*(known[v] for v in reads)), strict=True)
        loss = next((v for v in outputs if v in made and _is_number(v)), None)
        for part in self.parts:
            given = [known[v] for v in part.reads]
            decider = known[loss] if loss else _first_number(part, known, made, self.moved)
            known |= zip(part.makes, self._updated(part, given, decider), strict=True)
        return [v.val if jax_compat.is_literal(v) else known[v] for v in self.flat.outvars]

    def _updated(self, part: _Part, given: Sequence[Any], decider: Any) -> Sequence[Any]:
        """Return what a part makes, in the branch of a cond; the other keeps what there was."""
        jax = jax_compat.import_jax()
        run = self._function(part.reads, part.eqns, part.makes)
        nexts = {self.given.get(v) for v in part.makes} & self.moved

        def update(*values: Any) -> list[Any]:
            fetched = [
                jax_compat.put_in(x, "device") if v in self.moved else x
                for v, x in zip(part.reads, values, strict=True)
            ]
            # XLA makes the new state an array before it sends it, and so does the estimate then.
            made = jax.lax.optimization_barrier(list(run(*fetched)))
            return [
                jax_compat.put_in(x, "host") if self.given.get(v) in nexts else x
                for v, x in zip(part.makes, made, strict=True)
            ]

        def keep(*values: Any) -> list[Any]:
            old = dict(zip(part.reads, values, strict=True))
            return [
                old[self.given[v]]
                if self.given.get(v) in old
                else jax.lax.full(v.aval.shape, 0, v.aval.dtype)
                for v in part.makes
            ]

        made: Sequence[Any] = jax.lax.cond(jax.numpy.isfinite(decider), update, keep, *given)
        return made

    def _function(
        self, reads: Sequence[Var], eqns: Sequence[Eqn], makes: Sequence[Var]
    ) -> Callable[..., Sequence[Any]]:
        return jax_compat.as_function(jax_compat.part_of(self.flat, reads, eqns, makes))


def _taken_apart(
    flat: Jaxpr, state: Mapping[Var, Var], given: Mapping[Var, Var], passes: Passes
) -> _TakenApart | None:
    """Return a step's jaxpr with the updates of its state apart; None where there are none.

    Args:
      flat: The open jaxpr, with its calls inlined.
      state: The inputs that may be in host memory, each with its next value.
      given: The next values of inputs, each with its input.
      passes: The passes of the eqns.
    """
    groups = _Groups(state)
    for eqn in flat.eqns:
        groups.join(eqn)
    # What its own eqns do not make stays as it is.
    moved = {v for v, new in state.items() if groups.of(new) is not None and new not in state}
    if moved != state.keys():
        return _taken_apart(flat, {v: state[v] for v in moved}, given, passes) if moved else None
    if not state:
        return None
    group_of = _with_what_only_they_read(flat, groups, passes)
    own: dict[Var, list[Eqn]] = {}
    before: list[Eqn] = []
    for eqn in flat.eqns:
        group = group_of.get(id(eqn))
        (before if group is None else own.setdefault(group, [])).append(eqn)
    outputs = {v for v in flat.outvars if not jax_compat.is_literal(v)}
    parts = tuple(_part(eqns, outputs, given) for eqns in own.values())
    return _TakenApart(flat, tuple(before), parts, frozenset(state), given)


class _Groups:
    """Arrays of state that some eqn reads together, and what is made of them.

    Args:
      state: the arrays.
    """

    def __init__(self, state: Iterable[Var]) -> None:
        self._root: dict[Var, Var] = {v: v for v in state}  # of arrays
        self._of: dict[Var, Var] = {v: v for v in state}  # of values, an array

    def of(self, var: Var) -> Var | None:
        """Return the group of a value; None where it is made of no state."""
        if jax_compat.is_literal(var) or var not in self._of:
            return None
        root = self._of[var]
        while self._root[root] is not root:
            root = self._root[root]
        return root

    def join(self, eqn: Eqn) -> None:
        """Make one group of what an eqn reads; what it makes is in it."""
        found = list(dict.fromkeys(r for v in eqn.invars if (r := self.of(v)) is not None))
        for root in found[1:]:
            self._root[root] = found[0]
        if found:
            self._of.update((v, found[0]) for v in eqn.outvars)


def _with_what_only_they_read(flat: Jaxpr, groups: _Groups, passes: Passes) -> dict[int, Var]:
    """Return the groups of eqns, by id: of those made of state, and of what is for one group alone.

    Such as the square of a gradient, which would be an array of its own outside.
    """
    found: dict[int, Var] = {}
    readers: dict[Var, set[Var | None]] = {
        v: {None} for v in flat.outvars if not jax_compat.is_literal(v)
    }
    for eqn in reversed(flat.eqns):
        group = next((g for v in eqn.invars if (g := groups.of(v)) is not None), None)
        if group is None and passes.of(eqn) == UPDATE:
            reading = set[Var | None]().union(*(readers.get(v, ()) for v in eqn.outvars))
            group = reading.pop() if len(reading) == 1 else None
        if group is not None:
            found[id(eqn)] = group
        for v in eqn.invars:
            if not jax_compat.is_literal(v):
                readers.setdefault(v, set()).add(group)
    return found


def _part(eqns: Sequence[Eqn], outputs: set[Var], given: Mapping[Var, Var]) -> _Part:
    made = {v for eqn in eqns for v in eqn.outvars}
    makes = tuple(dict.fromkeys(v for eqn in eqns for v in eqn.outvars if v in outputs))
    read = [v for eqn in eqns for v in eqn.invars if not jax_compat.is_literal(v) and v not in made]
    kept = [given[v] for v in makes if v in given]
    return _Part(tuple(eqns), tuple(dict.fromkeys([*read, *kept])), makes)


def _first_number(
    part: _Part, known: Mapping[Var, Any], made: set[Var], moved: frozenset[Var]
) -> Any:
    """Return a number of the biggest floats that a part reads, of what the step makes if it can be.

    It is a number of a gradient.

    Raises:
      ValueError: it reads no floats but those in host memory.
    """
    floats = [v for v in part.reads if v not in moved and is_inexact(v.aval)]
    chosen = max(floats, key=lambda v: (v in made, _nbytes(v)))
    return jax_compat.import_jax().numpy.ravel(known[chosen])[0]


def _is_number(var: Var) -> bool:
    return not getattr(var.aval, "shape", (1,)) and is_inexact(var.aval)


def _nbytes(var: Var) -> int:
    size = 1
    for n in getattr(var.aval, "shape", ()):
        size *= n
    return size * int(getattr(getattr(var.aval, "dtype", None), "itemsize", 0))
