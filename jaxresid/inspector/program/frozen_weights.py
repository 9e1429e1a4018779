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
from jaxresid.inspector.jaxpr import extents
from jaxresid.inspector.jaxpr.flows import bits, is_inexact, mask_of
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
      unknown: the inputs in question: a forward pass reads them.
      holders: for each input the number of the argument that holds it.
    """
    sizes = [math.prod(extents.shape(v)) for v in jaxpr.invars]
    unknown = [i for i in unknown if sizes[i] > 1]
    if sum(sizes[i] for i in unknown) < _WORTH_TELLING * sum(sizes):
        return frozenset()
    trained_mask, unknown_mask = mask_of(trained), mask_of(unknown)
    holders_of_trained = {holders[i] for i in trained}
    beside = mask_of(
        i for i in unknown if holders[i] in holders_of_trained and is_inexact(jaxpr.invars[i])
    )
    invars = [
        _Made(mask := 1 << i & (trained_mask | unknown_mask), axes=(mask,) * len(extents.shape(v)))
        for i, v in enumerate(jaxpr.invars)
    ]
    floats = mask_of(i for i in unknown if is_inexact(jaxpr.invars[i]))
    square = mask_of(i for i in unknown if _is_square(jaxpr.invars[i]))
    votes = _Votes()
    weights = batch = 0
    for _ in range(_ROUNDS):
        weights_so_far = trained_mask | weights
        _Reader(passes, weights_so_far, batch, unknown_mask, floats, square, votes).outputs(
            jaxpr, invars
        )
        before = weights, batch
        weights, batch = votes.weights & ~votes.batch, votes.batch & ~votes.weights
        # What is beside trained parameters is a weight, too, where nothing says otherwise.
        weights |= beside & ~votes.batch
        if (weights, batch) == before:
            break
    known_weights = set(bits(weights))
    batches = {holders[i] for i in bits(batch)}
    decided = {holders[i] for i in known_weights} - batches - holders_of_trained
    return frozenset(known_weights | {i for i in unknown if holders[i] in decided})


@dataclass(slots=True)
class _Reader:
    """Reads how values are read.

    Attributes:
      weights, batch: the inputs that are known, a bit each.
      floats, square: those of these that are of floats, and that are square matrices.
    """

    passes: Passes
    weights: int
    batch: int
    unknown: int
    floats: int
    square: int
    votes: _Votes = field(default_factory=_Votes)

    def outputs(self, jaxpr: Jaxpr, inputs: Sequence[_Made]) -> list[_Made]:
        env: dict[Var, _Made] = dict.fromkeys(jaxpr.constvars, _OTHER)
        env.update(zip(jaxpr.invars, inputs, strict=True))

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
        if not eqn.outvars or is_backward or not any(origin.inputs for origin in operands):
            return [_OTHER] * len(eqn.outvars)
        if inside:
            results = [_OTHER] * len(eqn.outvars)
            for nest in inside:
                for i, origin in zip(nest.results, self._body(nest, operands), strict=True):
                    if i is not None:
                        results[i] = _joined(results[i], origin)
            return results
        self._vote(eqn, name, operands)
        inputs = functools.reduce(operator.or_, (origin.inputs for origin in operands))
        is_narrow = _is_narrow(eqn, name, operands)
        is_contracted = any(origin.is_contracted for origin in operands) or (
            name in _CONTRACTIONS and all(origin.inputs for origin in operands[:2])
        )
        is_reduced = name.startswith("reduce_") or any(origin.is_reduced for origin in operands)
        axes = _axes(eqn, name, operands) if len(eqn.outvars) == 1 else ()
        return [_Made(inputs, is_narrow, is_contracted, is_reduced, axes)] * len(eqn.outvars)

    def _body(self, nest: Nest, operands: Sequence[_Made]) -> list[_Made]:
        inputs = [
            replace(leaving, axes=leaving.axes[1:]) if i in nest.slices else leaving
            for i, leaving in enumerate(operands[j] for j in nest.operands)
        ]
        while True:
            leaving = self.outputs(nest.jaxpr, inputs)
            entering = list(inputs)
            for into, out in nest.carries.items():
                entering[into] = leaving[out] = _joined(inputs[into], leaving[out])
            if entering == inputs:
                return [
                    replace(v, axes=()) if i in nest.stacked else v for i, v in enumerate(leaving)
                ]
            inputs = entering

    def _is_batch(self, origin: _Made) -> bool:
        return bool(origin.inputs & self.batch)

    def _is_weight(self, origin: _Made) -> bool:
        return bool(origin.inputs) and not origin.inputs & ~self.weights

    def _asked(self, origin: _Made) -> int:
        return 0 if origin.is_contracted or origin.inputs & ~self.unknown else origin.inputs

    def _vote(self, eqn: Eqn, name: str, operands: list[_Made]) -> None:
        votes = self.votes
        if name in ("dot_general", "conv_general_dilated"):
            left, right = operands
            for origin, other in ((left, right), (right, left)):
                if self._is_weight(other) and not (name != "dot_general" and origin is right):
                    self._vote_contracted(eqn, name, origin, is_left=origin is left)
                # A product of what is not known yet has the batch in it.
                elif (self._is_batch(other) or other.is_contracted) and not _has_batch_dims(eqn):
                    votes.weights |= self._asked(origin)
        elif name in ("gather", "dynamic_slice", "scatter", "scatter-add"):
            for origin in operands[1:2] if name != "dynamic_slice" else operands[1:]:
                votes.batch |= self._asked(origin)
        elif name in _COMPARISONS:
            for origin, v in zip(operands, eqn.invars, strict=True):
                if extents.shape(v):
                    votes.batch |= self._asked(origin)
        elif _is_elementwise(eqn):
            for origin in operands:
                others = [other for other in operands if other is not origin]
                if not origin.is_reduced:
                    self._vote_elementwise(origin, others)

    def _vote_contracted(self, eqn: Eqn, name: str, origin: _Made, *, is_left: bool) -> None:
        """Vote for what is contracted with a weight: its rows are of the batch.

        What has no part in these, but in what is contracted, has made it: it is a weight. A graph's
        square matrix of edges before the features of its nodes is read alike, and tells nothing.
        """
        votes = self.votes
        if name == "dot_general" and origin.axes:
            contracted, batch = jax_compat.params(eqn)["dimension_numbers"]
            taken = {*contracted[not is_left], *batch[not is_left]}
            free = [origin.axes[dim] for dim in range(len(origin.axes)) if dim not in taken]
            rows = next((mask for mask in free if mask & self.unknown), 0)
            others = (
                functools.reduce(operator.or_, origin.axes) & self.floats & ~rows if rows else 0
            )
            if others and not rows & self.square and not (rows | others) & ~self.unknown:
                votes.batch |= rows
                votes.weights |= others
                return
        votes.batch |= self._asked(origin)

    def _vote_elementwise(self, origin: _Made, others: Sequence[_Made]) -> None:
        for other in others:
            if self._is_batch(other):
                if origin.is_narrow:
                    self.votes.weights |= self._asked(origin)
                else:
                    self.votes.batch |= self._asked(origin)
            elif self._is_weight(other):
                # Added to weights, it is one; scaled by one that is spread over it, it is not.
                if other.is_narrow and not origin.is_narrow:
                    self.votes.batch |= self._asked(origin)
                elif other.is_narrow == origin.is_narrow:
                    self.votes.weights |= self._asked(origin)


def _axes(eqn: Eqn, name: str, operands: Sequence[_Made]) -> tuple[int, ...]:
    """Return the inputs that each dim of a result is of; empty: not known."""
    params = jax_compat.params(eqn)
    first, rank = operands[0].axes, len(extents.shape(eqn.outvars[0]))
    if name == "dot_general":
        contracted, batch = params["dimension_numbers"]
        parts = [
            [origin.axes[dim] for dim in range(len(origin.axes)) if dim not in {*own, *shared}]
            for origin, own, shared in zip(operands, contracted, batch, strict=True)
        ]
        pairs = zip(*batch, strict=True)
        both = [operands[0].axis(i) | operands[1].axis(j) for i, j in pairs]
        dims = (*both, *parts[0], *parts[1])
        return dims if len(dims) == rank else ()
    if name == "broadcast_in_dim" and first:
        sizes = extents.shape(eqn.invars[0])
        to = dict(zip(params["broadcast_dimensions"], zip(first, sizes, strict=True), strict=True))
        return tuple(to[dim][0] if dim in to and to[dim][1] > 1 else 0 for dim in range(rank))
    if name == "transpose" and first:
        return tuple(first[dim] for dim in params["permutation"])
    if name in ELEMENTWISE or name in CASTS | COPIES | MARKS | SHARDINGS:
        axes_of_operands = [origin.axes for origin in operands if origin.axes]
        if all(len(axes) == rank for axes in axes_of_operands):
            return tuple(
                functools.reduce(operator.or_, masks)
                for masks in zip(*axes_of_operands, strict=True)
            )
    return ()


def _is_square(v: Var) -> bool:
    return len(set(extents.shape(v)[-2:])) == 1 < len(extents.shape(v))


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
    shapes = {extents.shape(v) for v in eqn.invars} - {()}
    to = extents.shape(eqn.outvars[0])
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
    origins = [origin for origin in operands if origin.inputs]
    is_same = extents.shape(eqn.invars[0]) == extents.shape(eqn.outvars[0])
    return is_same and all(origin.is_narrow for origin in origins)
