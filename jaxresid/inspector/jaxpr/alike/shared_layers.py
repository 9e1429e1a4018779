"""Put layers that are alike into calls of one jaxpr, which JAX then differentiates once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.alike import structural_key
from jaxresid.inspector.jaxpr.alike.repeats import periodic
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr, Var

_FEWEST_LAYERS = 3
# A layer of fewer eqns is differentiated as quickly as a call.
_FEWEST_EQNS = 8


def with_shared_layers(jaxpr: Jaxpr) -> Jaxpr:
    """Return an open jaxpr that computes the same, with layers that are alike as calls of one.

    Integers in which they differ, such as those that keys are folded with, are operands of the
    calls. The first layer's lines and name stacks are those of all of them. What has effects stays
    as it is.

    Raises:
      Exception: whatever a rule for tangents raises while JAX traces it.
    """
    if jaxpr.effects:
        return jaxpr
    eqns, at = list[Eqn](), 0
    keys = _Keys().of(jaxpr)
    # Where the layers of an encoder end like those of the decoder, these would begin in them.
    stretches = max(
        (periodic(keys, _FEWEST_LAYERS, latest=latest) for latest in (False, True)),
        key=lambda each: sum(stretch.stop - stretch.start for stretch in each),
    )
    for each in sorted(stretches, key=lambda stretch: stretch.start):
        parts = [jaxpr.eqns[i : i + each.length] for i in range(each.start, each.stop, each.length)]
        is_worth_it = each.length >= _FEWEST_EQNS or (
            sum(1 for _ in eqns_in(jax_compat.with_other_eqns(jaxpr, parts[0]))) >= _FEWEST_EQNS
        )
        if is_worth_it:
            eqns += [*jaxpr.eqns[at : each.start], *_calls(jaxpr, parts)]
            at = each.stop
    return jax_compat.with_other_eqns(jaxpr, [*eqns, *jaxpr.eqns[at:]]) if at else jaxpr


class _Keys:
    """Numbers that eqns share which compute the same of other operands.

    What they hold is compared by what is in it, so that a loop that was traced anew in each layer
    is the same in all.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._jaxprs: dict[tuple[int, bool], Hashable] = {}
        # A rule, or what has one, is not differentiated, and may hold a call of itself.
        self._is_rule = False

    def of(self, jaxpr: Jaxpr) -> list[int]:
        """Return the number of each eqn of an open jaxpr."""
        return [self._number(self._eqn(eqn)) for eqn in jaxpr.eqns]

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _eqn(self, eqn: Eqn) -> Hashable:
        params = jax_compat.params_with_rule(eqn, is_differentiated=not self._is_rule)
        is_rule, self._is_rule = self._is_rule, self._is_rule or _has_rule(eqn)
        each = tuple((name, self._param(value)) for name, value in params.items())
        self._is_rule = is_rule
        return (
            eqn.primitive,
            tuple(map(_operand, eqn.invars)),
            tuple(v.aval for v in eqn.outvars),
            each,
            frozenset(eqn.effects),
            structural_key.hashable(eqn.ctx),
        )

    def _param(self, value: object) -> Hashable:
        if isinstance(value, tuple):
            return tuple(map(self._param, value))
        if not jax_compat.is_jaxpr(value) or getattr(value, "consts", None):
            return structural_key.hashable(value)
        jaxpr = jax_compat.open_jaxpr(value)
        key = id(jaxpr), self._is_rule
        if key not in self._jaxprs:
            self._jaxprs[key] = self._number(self._jaxpr(jaxpr))
        return self._jaxprs[key]

    def _jaxpr(self, jaxpr: Jaxpr) -> Hashable:
        numbers: dict[Var, int] = {}

        def var(v: Var) -> Hashable:
            if jax_compat.is_literal(v):
                return structural_key.of_literal(v)
            return v.aval, numbers.setdefault(v, len(numbers))

        def each(variables: Sequence[Var]) -> Hashable:
            return tuple(map(var, variables))

        inputs = each((*jaxpr.constvars, *jaxpr.invars))
        eqns = tuple((self._eqn(e), each(e.invars), each(e.outvars)) for e in jaxpr.eqns)
        return inputs, eqns, each(jaxpr.outvars)


def _has_rule(eqn: Eqn) -> bool:
    return jax_compat.primitive_name(eqn) == "custom_jvp_call"


def _is_integer(literal: Var) -> bool:
    return not literal.aval.shape and literal.aval.dtype.kind in "iu"


def _operand(v: Var) -> Hashable:
    if jax_compat.is_literal(v) and not _is_integer(v):
        return structural_key.of_literal(v)
    return jax_compat.is_literal(v), structural_key.hashable(v.aval)


# The eqn of a layer and which of its results, or the number of an operand of the layer.
_Read = tuple[int, int] | int


@dataclass(frozen=True, slots=True)
class _Layer:
    """The eqns of a layer.

    Attributes:
      eqns: the eqns.
      reads: what each of them reads, literals included.
      operands: what they read from outside, each variable once, and their literals.
    """

    eqns: Sequence[Eqn]
    reads: tuple[tuple[_Read, ...], ...]
    operands: tuple[Var, ...]


def _layer(eqns: Sequence[Eqn]) -> _Layer:
    made: dict[Var, tuple[int, int]] = {}
    numbers: dict[Var, int] = {}
    operands: list[Var] = []

    def read(v: Var) -> _Read:
        if jax_compat.is_literal(v):
            operands.append(v)
            return len(operands) - 1
        if v in made:
            return made[v]
        if v not in numbers:
            numbers[v] = len(operands)
            operands.append(v)
        return numbers[v]

    reads = []
    for i, eqn in enumerate(eqns):
        reads.append(tuple(map(read, eqn.invars)))
        made.update((v, (i, which)) for which, v in enumerate(eqn.outvars))
    return _Layer(eqns, tuple(reads), tuple(operands))


def _calls(jaxpr: Jaxpr, parts: Sequence[Sequence[Eqn]]) -> list[Eqn]:
    """Return a call for each of some layers, of one jaxpr for those whose eqns read alike."""
    layers = [_layer(part) for part in parts]
    own = {id(eqn) for part in parts for eqn in part}
    wanted = {v for eqn in jaxpr.eqns if id(eqn) not in own for v in _read_by(eqn.invars)}
    wanted.update(_read_by(jaxpr.outvars), *(_read_by(layer.operands) for layer in layers))
    groups: defaultdict[Hashable, list[_Layer]] = defaultdict(list)
    for layer in layers:
        groups[layer.reads].append(layer)
    made: dict[int, Eqn] = {}
    for group in groups.values():
        results = [
            (i, which)
            for i, eqn in enumerate(group[0].eqns)
            for which in range(len(eqn.outvars))
            if any(layer.eqns[i].outvars[which] in wanted for layer in group)
        ]
        given = [
            number
            for number in range(len(group[0].operands))
            if not _is_one_literal([layer.operands[number] for layer in group])
        ]
        body = _body(jaxpr, group[0], given, results)
        for layer in group:
            call = layer.eqns[0].replace(
                invars=[layer.operands[number] for number in given],
                outvars=[layer.eqns[i].outvars[which] for i, which in results],
            )
            made[id(layer)] = jax_compat.as_call(call, body)
    return [made[id(layer)] for layer in layers]


def _read_by(variables: Sequence[Var]) -> list[Var]:
    return [v for v in variables if not jax_compat.is_literal(v)]


def _is_one_literal(operands: Sequence[Var]) -> bool:
    """Return whether an operand is the same number in all layers."""
    if not all(map(jax_compat.is_literal, operands)):
        return False
    return len({structural_key.of_literal(v) for v in operands}) == 1


def _body(
    jaxpr: Jaxpr, layer: _Layer, given: Sequence[int], results: Sequence[tuple[int, int]]
) -> ClosedJaxpr:
    inputs = {
        n: jax_compat.new_var_like(layer.operands[n])
        if jax_compat.is_literal(layer.operands[n])
        else layer.operands[n]
        for n in given
    }
    eqns = [
        eqn.replace(
            invars=[
                inputs.get(read, v) if isinstance(read, int) else v
                for v, read in zip(eqn.invars, reads, strict=True)
            ]
        )
        for eqn, reads in zip(layer.eqns, layer.reads, strict=True)
    ]
    outputs = [layer.eqns[i].outvars[which] for i, which in results]
    apart = jaxpr.replace(constvars=[]) if jaxpr.constvars else jaxpr
    return jax_compat.part_of(apart, list(inputs.values()), eqns, outputs)
