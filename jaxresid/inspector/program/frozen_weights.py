"""Tell frozen weights from the batch: both are read by a forward pass and not trained.

A forward pass contracts activations with weights, and the batch is what activations are made of.
The parameters that are trained are known to be weights; what is contracted with these is the batch,
and what is contracted with something made of the batch is a weight, and so on.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.flows import bits, is_inexact
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.inspector.jaxpr.phases import BACKWARD, Passes
from jaxresid.inspector.jaxpr.primitives import (
    CASTS,
    COPIES,
    ELEMENTWISE,
    MARKS,
    SHARDINGS,
    SIDE_BY_SIDE,
)
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

# Less of the inputs is not worth telling apart.
_WORTH_TELLING: Final = 0.01
# Each finds what follows from the one before; more than this no program needed.
_ROUNDS: Final = 4
_CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated", "gather", "dynamic_slice"})
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


@dataclass(frozen=True, slots=True)
class _Made:
    """What a value is made of.

    Attributes:
      inputs: those of the weights and of the inputs in question, a bit each.
      is_narrow: whether it has been broadcast along dims in front of its own, as a bias is along
        the batch.
      is_contracted: whether inputs of both kinds may be in it, as in a product of matrices.
      is_reduced: whether a sum over some dims is in it, such as the mean of a batch, which has the
        shape of weights.
      axes: for each of its dims the inputs that it is one of the dims of; empty: not known.
    """

    inputs: int = 0
    is_narrow: bool = False
    is_contracted: bool = False
    is_reduced: bool = False
    axes: tuple[int, ...] = ()

    def axis(self, dim: int) -> int:
        """Return the inputs, a bit each, that a dim is one of the dims of; 0: not known."""
        return self.axes[dim] if self.axes else 0


_OTHER = _Made()


@dataclass(slots=True)
class _Votes:
    """What is read like weights and like the batch, a bit for each input."""

    weights: int = 0
    batch: int = 0


def frozen_weights(
    jaxpr: Jaxpr,
    passes: Passes,
    trained: Iterable[int],
    unknown: Iterable[int],
    holders: Sequence[int],
) -> frozenset[int]:
    """Return which inputs are weights, by number.

    What is read both ways, or is only looked up in, such as a table, is what the rest of its
    argument is.

    Args:
      jaxpr: the program.
      passes: tells which of its eqns are those of a backward pass.
      trained: the inputs that are trained.
      unknown: the inputs in question: a forward pass reads them.
      holders: for each input the number of the argument that holds it.
    """
    sizes = [math.prod(_shape(v)) for v in jaxpr.invars]
    unknown = [i for i in unknown if sizes[i] > 1]
    if sum(sizes[i] for i in unknown) < _WORTH_TELLING * sum(sizes):
        return frozenset()
    trained_mask, unknown_mask = _mask(trained), _mask(unknown)
    holders_of_trained = {holders[i] for i in trained}
    beside = _mask(
        i for i in unknown if holders[i] in holders_of_trained and is_inexact(jaxpr.invars[i])
    )
    given = [
        _Made(mask := 1 << i & (trained_mask | unknown_mask), axes=(mask,) * len(_shape(v)))
        for i, v in enumerate(jaxpr.invars)
    ]
    floats = _mask(i for i in unknown if is_inexact(jaxpr.invars[i]))
    square = _mask(i for i in unknown if _is_square(jaxpr.invars[i]))
    votes = _Votes()
    weights = batch = 0
    for _ in range(_ROUNDS):
        known = trained_mask | weights
        _Reader(passes, known, batch, unknown_mask, floats, square, votes).outputs(jaxpr, given)
        before = weights, batch
        weights, batch = votes.weights & ~votes.batch, votes.batch & ~votes.weights
        # What is beside trained parameters is a weight, too, where nothing says otherwise.
        weights |= beside & ~votes.batch
        if (weights, batch) == before:
            break
    found = set(bits(weights))
    batches = {holders[i] for i in bits(batch)}
    decided = {holders[i] for i in found} - batches - holders_of_trained
    return frozenset(found | {i for i in unknown if holders[i] in decided})


def _mask(numbers: Iterable[int]) -> int:
    return functools.reduce(operator.or_, (1 << i for i in numbers), 0)


@dataclass(slots=True)
class _Reader:
    """Reads how values are read.

    Attributes:
      passes: tells which eqns are those of a backward pass.
      weights, batch: the inputs that are known, a bit each.
      unknown: the inputs in question.
      floats, square: those of these that are of floats, and that are square matrices.
      votes: gets what they are read like.
    """

    passes: Passes
    weights: int
    batch: int
    unknown: int
    floats: int
    square: int
    votes: _Votes = field(default_factory=_Votes)

    def outputs(self, jaxpr: Jaxpr, given: Sequence[_Made]) -> list[_Made]:
        """Return what the outvars of a jaxpr are made of."""
        env: dict[Var, _Made] = dict.fromkeys(jaxpr.constvars, _OTHER)
        env.update(zip(jaxpr.invars, given, strict=True))

        def read(v: Var) -> _Made:
            return _OTHER if jax_compat.is_literal(v) else env[v]

        for eqn in jaxpr.eqns:
            env.update(
                zip(eqn.outvars, self._results(eqn, list(map(read, eqn.invars))), strict=True)
            )
        return [read(v) for v in jaxpr.outvars]

    def _results(self, eqn: Eqn, operands: list[_Made]) -> Sequence[_Made]:
        name = jax_compat.primitive_name(eqn)
        if name in SIDE_BY_SIDE:
            return operands
        inside = nests(eqn)
        is_backward = self.passes.of(eqn) == BACKWARD
        if not eqn.outvars or is_backward or not any(made.inputs for made in operands):
            return [_OTHER] * len(eqn.outvars)
        if inside:
            results = [_OTHER] * len(eqn.outvars)
            for nest in inside:
                for i, made in zip(nest.results, self._body(nest, operands), strict=True):
                    if i is not None:
                        results[i] = _joined(results[i], made)
            return results
        self._vote(eqn, name, operands)
        inputs = functools.reduce(operator.or_, (made.inputs for made in operands))
        is_narrow = _is_narrow(eqn, name, operands)
        is_contracted = any(made.is_contracted for made in operands) or (
            name in _CONTRACTIONS and all(made.inputs for made in operands[:2])
        )
        is_reduced = name.startswith("reduce_") or any(made.is_reduced for made in operands)
        axes = _axes(eqn, name, operands) if len(eqn.outvars) == 1 else ()
        return [_Made(inputs, is_narrow, is_contracted, is_reduced, axes)] * len(eqn.outvars)

    def _body(self, nest: Nest, operands: Sequence[_Made]) -> list[_Made]:
        given = [
            replace(made, axes=made.axes[1:]) if i in nest.slices else made
            for i, made in enumerate(operands[j] for j in nest.operands)
        ]
        while True:
            made = self.outputs(nest.jaxpr, given)
            entering = list(given)
            for into, out in nest.carries.items():
                entering[into] = made[out] = _joined(given[into], made[out])
            if entering == given:
                return [replace(v, axes=()) if i in nest.stacked else v for i, v in enumerate(made)]
            given = entering

    def _is_batch(self, made: _Made) -> bool:
        return bool(made.inputs & self.batch)

    def _is_weight(self, made: _Made) -> bool:
        return bool(made.inputs) and not made.inputs & ~self.weights

    def _asked(self, made: _Made) -> int:
        """Return the inputs in question that a value is made of, if it is made of these alone."""
        return 0 if made.is_contracted or made.inputs & ~self.unknown else made.inputs

    def _vote(self, eqn: Eqn, name: str, operands: list[_Made]) -> None:
        votes = self.votes
        if name in ("dot_general", "conv_general_dilated"):
            left, right = operands
            for made, other in ((left, right), (right, left)):
                if self._is_weight(other) and not (name != "dot_general" and made is right):
                    self._vote_contracted(eqn, name, made, is_left=made is left)
                # A product of what is not known yet has the batch in it.
                elif (self._is_batch(other) or other.is_contracted) and not _has_batch_dims(eqn):
                    votes.weights |= self._asked(made)
        elif name in ("gather", "dynamic_slice", "scatter", "scatter-add"):
            for made in operands[1:2] if name != "dynamic_slice" else operands[1:]:
                votes.batch |= self._asked(made)
        elif name in _COMPARISONS:
            for made, v in zip(operands, eqn.invars, strict=True):
                if _shape(v):
                    votes.batch |= self._asked(made)
        elif _is_elementwise(eqn):
            for made in operands:
                others = [other for other in operands if other is not made]
                if not made.is_reduced:
                    self._vote_elementwise(made, others)

    def _vote_contracted(self, eqn: Eqn, name: str, made: _Made, *, is_left: bool) -> None:
        """Vote for what is contracted with a weight: its rows are of the batch.

        What has no part in these, but in what is contracted, has made it: it is a weight. A graph's
        square matrix of edges before the features of its nodes is read alike, and tells nothing.
        """
        votes = self.votes
        if name == "dot_general" and made.axes:
            contracted, batch = jax_compat.params(eqn)["dimension_numbers"]
            taken = {*contracted[not is_left], *batch[not is_left]}
            free = [made.axes[dim] for dim in range(len(made.axes)) if dim not in taken]
            rows = next((mask for mask in free if mask & self.unknown), 0)
            others = functools.reduce(operator.or_, made.axes) & self.floats & ~rows if rows else 0
            if others and not rows & self.square and not (rows | others) & ~self.unknown:
                votes.batch |= rows
                votes.weights |= others
                return
        votes.batch |= self._asked(made)

    def _vote_elementwise(self, made: _Made, others: Sequence[_Made]) -> None:
        for other in others:
            if self._is_batch(other):
                if made.is_narrow:
                    self.votes.weights |= self._asked(made)
                else:
                    self.votes.batch |= self._asked(made)
            elif self._is_weight(other):
                # Added to weights, it is one; scaled by one that is spread over it, it is not.
                if other.is_narrow and not made.is_narrow:
                    self.votes.batch |= self._asked(made)
                elif other.is_narrow == made.is_narrow:
                    self.votes.weights |= self._asked(made)


def _shape(v: Var) -> tuple[int, ...]:
    return tuple(getattr(v.aval, "shape", ()))


def _axes(eqn: Eqn, name: str, operands: Sequence[_Made]) -> tuple[int, ...]:
    """Return the inputs that each dim of a result is of; empty: not known."""
    params = jax_compat.params(eqn)
    first, rank = operands[0].axes, len(_shape(eqn.outvars[0]))
    if name == "dot_general":
        contracted, batch = params["dimension_numbers"]
        parts = [
            [made.axes[dim] for dim in range(len(made.axes)) if dim not in {*own, *shared}]
            for made, own, shared in zip(operands, contracted, batch, strict=True)
        ]
        pairs = zip(*batch, strict=True)
        both = [operands[0].axis(i) | operands[1].axis(j) for i, j in pairs]
        found = (*both, *parts[0], *parts[1])
        return found if len(found) == rank else ()
    if name == "broadcast_in_dim" and first:
        sizes = _shape(eqn.invars[0])
        to = dict(zip(params["broadcast_dimensions"], zip(first, sizes, strict=True), strict=True))
        return tuple(to[dim][0] if dim in to and to[dim][1] > 1 else 0 for dim in range(rank))
    if name == "transpose" and first:
        return tuple(first[dim] for dim in params["permutation"])
    if name in ELEMENTWISE or name in CASTS | COPIES | MARKS | SHARDINGS:
        known = [made.axes for made in operands if made.axes]
        if all(len(axes) == rank for axes in known):
            return tuple(
                functools.reduce(operator.or_, masks) for masks in zip(*known, strict=True)
            )
    return ()


def _is_square(v: Var) -> bool:
    return len(set(_shape(v)[-2:])) == 1 < len(_shape(v))


def _joined(first: _Made, second: _Made) -> _Made:
    return _Made(
        first.inputs | second.inputs,
        first.is_narrow or second.is_narrow,
        first.is_contracted or second.is_contracted,
        first.is_reduced or second.is_reduced,
        tuple(map(operator.or_, first.axes, second.axes)),
    )


def _has_batch_dims(eqn: Eqn) -> bool:
    if jax_compat.primitive_name(eqn) != "dot_general":
        return False
    _, (batch, _) = jax_compat.params(eqn)["dimension_numbers"]
    return bool(batch)


def _is_elementwise(eqn: Eqn) -> bool:
    shapes = {_shape(v) for v in eqn.invars} - {()}
    to = _shape(eqn.outvars[0])
    if len(eqn.invars) < 2 or to not in shapes:
        return False
    if jax_compat.primitive_name(eqn) not in ELEMENTWISE:
        return shapes == {to}
    return all(
        size in (1, whole) for shape in shapes for size, whole in zip(shape, to, strict=True)
    )


def _is_narrow(eqn: Eqn, name: str, operands: Sequence[_Made]) -> bool:
    """Return whether a result is one that has been broadcast along dims in front of its own."""
    if name == "broadcast_in_dim":
        shape, rank = eqn.invars[0].aval.shape, len(eqn.outvars[0].aval.shape)
        to = jax_compat.params(eqn)["broadcast_dimensions"]
        own = [d for d, size in zip(to, shape, strict=True) if size > 1]
        kept = [d for d, size in enumerate(eqn.outvars[0].aval.shape) if d in to and size == 1]
        spread = set(range(rank)).difference(own, kept)
        return operands[0].is_narrow or (bool(own) and any(d < own[0] for d in spread))
    made = [each for each in operands if each.inputs]
    is_same = _shape(eqn.invars[0]) == _shape(eqn.outvars[0])
    return is_same and all(each.is_narrow for each in made)
