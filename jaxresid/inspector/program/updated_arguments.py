"""Tell which arguments a program without a gradient returns updated: caches, states of simulations.

They are told by the way that values take through the program, and by where they are in what comes
in and goes out. What only has the shape of an argument, such as the output of a layer, is no next
value of it.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.flows import Flows, bits, is_inexact
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.inspector.jaxpr.primitives import (
    CASTS,
    CONTRACTIONS,
    COPIES,
    MARKS,
    PARTS,
    SCATTERS,
    SHARDINGS,
    SIDE_BY_SIDE,
    TRANSPARENT,
    VIEWS,
)
from jaxresid.inspector.program.build import ValueRole
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import LiveKind

STATE: Final = "state"

# Results are their first operand with some elements changed, or the very same.
_UPDATES = CASTS | COPIES | MARKS | SCATTERS | SHARDINGS | VIEWS | {"dynamic_update_slice"}


def updated_arguments(step: StepTrace) -> dict[int, frozenset[int]]:
    """Return the inputs that a program without a gradient returns updated, by number.

    Each has the outputs that are its next value. These are

    - what is changed in place, and donated arrays that an output like them is made of;
    - arrays in a tree whose place in what is returned is their own: `state.x` and `[0].x`;
    - two arguments or more that are one array each and come back in their order;
    - what an output is after parts of it are written, or after a loop that has it as its state;
    - what alone of all inputs an output is after something is added to it, unless the program
      multiplies by matrices that it does not return: `x + tanh(x @ w)` is a layer.

    What is returned as it is, is none of them.
    """
    jaxpr, inputs, updates = step.jaxpr, step.inputs, step.updates
    flows = Flows(jaxpr)
    back: dict[int, set[int]] = {}
    as_it_is = set(jaxpr.invars)
    for j, (v, flow) in enumerate(zip(jaxpr.outvars, flows.outputs, strict=True)):
        if j < step.num_returned and not jax_compat.is_literal(v) and v not in as_it_is:
            for i in bits(flow.inputs & flows.like(v)):
                if i not in updates and inputs[i] is not None:
                    back.setdefault(i, set()).add(j)
    keys = {i: path_keys(inputs[i] or "") for i in back}
    tails = _Tails([path_keys(path) for path in step.outputs])
    bare = _in_order({i: back[i] for i in back if not keys[i]})
    origins = _Origins(_written_operands)
    written: dict[int, set[int]] = {}
    for j in set().union(*back.values()):
        for i in origins.of(jaxpr, j):
            written.setdefault(i, set()).add(j)
    found = {i: frozenset({j}) for i, j in updates.items()}
    for i, outputs in back.items():
        nexts = outputs & tails.ending_with(keys[i]) or outputs & written.get(i, set())
        nexts = nexts or bare.get(i, set())
        if nexts or step.donated[i]:
            found[i] = frozenset(nexts or outputs)
    left = {i: back[i] for i in back.keys() - found.keys()}
    return found | _added_to(jaxpr, left, frozenset().union(*found.values()))


def argument_roles(step: StepTrace) -> tuple[tuple[ValueRole, ...], tuple[ValueRole, ...]]:
    """Return the roles of the inputs and outputs of a program without a gradient.

    An input is `state` where it is returned updated, else `argument`, or a `constant`. An output is
    `state` where it is the next value of a donated input, and has the path of that; else `output`.
    """
    updated = updated_arguments(step)
    inputs = [ValueRole("constant")] * len(step.jaxpr.constvars)
    for i, path in enumerate(step.inputs):
        kind: LiveKind = STATE if i in updated else "argument"
        inputs.append(ValueRole("constant" if path is None else kind, path, step.donated[i]))
    outputs = [ValueRole("output", path) for path in step.outputs]
    for i, nexts in updated.items():
        if step.donated[i]:
            for j in nexts:
                outputs[j] = ValueRole(STATE, step.inputs[i])
    return tuple(inputs), tuple(outputs)


def _in_order(back: dict[int, set[int]]) -> dict[int, set[int]]:
    """Return the inputs that come back in their order, two or more, each with its output."""
    found: dict[int, set[int]] = {}
    last = -1
    for i in sorted(back):
        j = next((j for j in sorted(back[i]) if j > last), None)
        if j is not None:
            found[i], last = {j}, j
    return found if len(found) > 1 else {}


def _added_to(
    jaxpr: Jaxpr, back: Mapping[int, set[int]], taken: frozenset[int]
) -> dict[int, frozenset[int]]:
    """Return the inputs that come back with something added to them, each with its output.

    Args:
      jaxpr: the program.
      back: the inputs in question, each with the outputs like it that are made of it.
      taken: the outputs that are the next value of other inputs.
    """
    found: dict[int, frozenset[int]] = {}
    for operands_of in (_added_operands, _scaled_operands):
        origins = _Origins(operands_of)
        for j in sorted(set().union(*back.values()) - taken):
            alone = [i for i in origins.of(jaxpr, j) if j in back.get(i, ())]
            if len(alone) == 1 and alone[0] not in found:
                found[alone[0]] = frozenset({j})
                taken |= {j}
    matrices = _contracted(jaxpr, [1 << i for i in range(len(jaxpr.invars))]) if found else 0
    return {} if any(i not in found for i in bits(matrices)) else found


def _contracted(jaxpr: Jaxpr, given: Sequence[int]) -> int:
    """Return the inputs, a bit each, that matrix products and convolutions read as they are.

    Vectors are none of them, nor are stencils: kernels of one channel. A bit more than there are
    inputs is that of matrices which the program itself holds.

    Args:
      jaxpr: the jaxpr.
      given: the input that each of its invars is, a bit each; 0 for one that is computed.
    """
    return _Contracted(1 << len(given)).of(jaxpr, given)


@dataclass(frozen=True, slots=True)
class _Contracted:
    constant: int

    def of(self, jaxpr: Jaxpr, given: Sequence[int]) -> int:
        env = dict(zip(jaxpr.invars, given, strict=True)) | dict.fromkeys(
            jaxpr.constvars, self.constant
        )
        found = 0
        for eqn in jaxpr.eqns:
            operands = [0 if jax_compat.is_literal(v) else env.get(v, 0) for v in eqn.invars]
            name = jax_compat.primitive_name(eqn)
            if name in SIDE_BY_SIDE:
                env.update(zip(eqn.outvars, operands, strict=True))
            elif name in TRANSPARENT or name in PARTS:
                env[eqn.outvars[0]] = operands[0]
            elif name in CONTRACTIONS:
                found |= functools.reduce(
                    operator.or_, (operands[i] for i in _matrices(eqn, name)), 0
                )
            for nest in nests(eqn):
                given = [
                    0 if i in nest.carries else operands[j] for i, j in enumerate(nest.operands)
                ]
                found |= self.of(nest.jaxpr, given)
        return found


def _matrices(eqn: Eqn, name: str) -> Iterator[int]:
    """Yield the numbers of the operands of a contraction that may be weights."""
    if name == "conv_general_dilated":
        outputs, inputs, *_ = jax_compat.params(eqn)["dimension_numbers"].rhs_spec
        if max(_shape(eqn.invars[1])[outputs], _shape(eqn.invars[1])[inputs]) > 1:
            yield 1
    else:
        yield from (i for i, v in enumerate(eqn.invars) if len(_shape(v)) > 1)


def _shape(v: Var) -> tuple[int, ...]:
    return tuple(getattr(v.aval, "shape", ()))


def path_keys(path: str) -> list[str]:
    """Return the keys of a path: `['layers']`, `[3]` and `.w` for `params['layers'][3].w`."""
    return re.findall(r"\[(?:'[^']*'|[^\[\]]*+)\]|(?<=[\w\]])\.\w+|^\.\w+", path)


class _Tails:
    """Which paths end with some keys."""

    def __init__(self, paths: Sequence[Sequence[str]]) -> None:
        self._ending: dict[tuple[str, ...], set[int]] = {}
        for j, keys in enumerate(paths):
            for start in range(len(keys)):
                self._ending.setdefault(tuple(keys[start:]), set()).add(j)

    def ending_with(self, keys: Sequence[str]) -> set[int]:
        """Return the numbers of the paths that end with keys; none where there are no keys."""
        return self._ending.get(tuple(keys), set())


class _Origins:
    """What values are the next value of, such as after parts of it are written, or loops on it."""

    def __init__(self, operands_of: Callable[[Eqn, str, int], Iterable[int]]) -> None:
        self._operands_of = operands_of
        # By id; the jaxpr is kept, or its id could be reused.
        self._makers: dict[int, tuple[Jaxpr, dict[Var, Eqn]]] = {}

    def of(self, jaxpr: Jaxpr, output: int) -> frozenset[int]:
        """Return the numbers of the invars of a jaxpr that an outvar is the next value of."""
        invars, makers = {v: i for i, v in enumerate(jaxpr.invars)}, self._makers_of(jaxpr)
        origins, seen = set[int](), set[Var]()
        stack = [jaxpr.outvars[output]]
        while stack:
            v = stack.pop()
            if jax_compat.is_literal(v) or v in seen:
                continue
            seen.add(v)
            if v in invars:
                origins.add(invars[v])
            elif v in makers:
                eqn = makers[v]
                stack += (eqn.invars[i] for i in self._operands(eqn, eqn.outvars.index(v)))
        return frozenset(origins)

    def _makers_of(self, jaxpr: Jaxpr) -> dict[Var, Eqn]:
        if id(jaxpr) not in self._makers:
            makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
            self._makers[id(jaxpr)] = jaxpr, makers
        return self._makers[id(jaxpr)][1]

    def _operands(self, eqn: Eqn, result: int) -> Iterator[int]:
        """Yield the numbers of the operands that a result of an eqn is the next value of."""
        yield from self._operands_of(eqn, jax_compat.primitive_name(eqn), result)
        for nest in nests(eqn):
            if result in nest.results:
                yield from self._into(nest, nest.outvar(result))

    def _into(self, nest: Nest, out: int) -> Iterator[int]:
        """Yield the numbers of the operands that an inner outvar is the next value of."""
        carry = next((i for i, j in nest.carries.items() if j == out), None)
        if carry is None:
            yield from (nest.operands[i] for i in self.of(nest.jaxpr, out))
        # A loop over the weights of layers hands on what they compute, and no state.
        elif not any(is_inexact(nest.jaxpr.invars[i]) for i in nest.slices) or (
            carry in self.of(nest.jaxpr, out)
        ):
            yield nest.operands[carry]


def _written_operands(eqn: Eqn, name: str, result: int) -> Iterable[int]:
    """Return the numbers of the operands that a result is, with parts of it written."""
    if name in SIDE_BY_SIDE:
        return (result,)
    if name in _UPDATES:
        return (0,)
    return range(1, len(eqn.invars)) if name == "select_n" else ()


def _added_operands(eqn: Eqn, name: str, result: int) -> Iterable[int]:
    """Return the numbers of the operands that a result is, with something added or put beside."""
    if name in ("add", "add_any"):
        return (i for i, v in enumerate(eqn.invars) if _shape(v))
    if name == "concatenate":
        return range(len(eqn.invars))
    if name in ("sub", "slice"):
        return (0,)
    return _written_operands(eqn, name, result)


def _scaled_operands(eqn: Eqn, name: str, result: int) -> Iterable[int]:
    """Return the numbers of the operands that a result is, added to, scaled or kept in bounds."""
    if name == "fft":
        return (0,)
    if name in ("mul", "div", "rem", "max", "min", "clamp") and len(eqn.invars) > 1:
        whole = [i for i, v in enumerate(eqn.invars) if _shape(v)]
        is_phase = getattr(eqn.outvars[0].aval.dtype, "kind", "") == "c"
        return whole if len(whole) == 1 or is_phase else ()
    return _added_operands(eqn, name, result)
