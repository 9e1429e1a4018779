"""Find the dims of an op's operands and results that are one and the same dim.

What splits one of them splits the others. There is a rule per class of primitives. Everything else
links, between arrays of one rank, the dims of one size: so do elementwise ops, `concatenate`,
`slice`, `pad`, `sort` and `cumsum`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxresid.inspector.jaxpr.primitives import ARG_REDUCTIONS, REDUCTIONS, SCATTERS
from jaxresid.inspector.program.ops import BARRIER, Op, Value

Dim = tuple[Value, int]


@dataclass(frozen=True, slots=True)
class Links:
    """Groups of dims that are one and the same dim.

    Attributes:
      groups: the groups, each dim as a value and an axis of it.
      is_plain: whether the op works element by element; compilers spread splits over these first.
    """

    groups: tuple[tuple[Dim, ...], ...]
    is_plain: bool = False


def links(op: Op) -> Links:
    """Return the dims of an op that are the same dim; links inside its bodies are not included."""
    if op.bodies:
        return Links(tuple(_around_bodies(op)))
    if op.name == BARRIER:
        pairs = zip(op.operands, op.results, strict=True)
        return Links(_one_by_one(itertools.chain.from_iterable([[p] for p in pairs])), True)
    rule = _RULES.get(op.name)
    if rule is not None:
        return Links(tuple(g for g in rule(op) if len(g) > 1))
    arrays = [*op.operands, *op.results]
    shapes = {v.shape for v in arrays if v.shape}
    return Links(tuple(_alike(op)), len(shapes) == 1)


def _one_by_one(pairs: itertools.chain[tuple[Value, Value]]) -> tuple[tuple[Dim, ...], ...]:
    return tuple(((a, d), (b, d)) for a, b in pairs for d in range(min(len(a.shape), len(b.shape))))


def _alike(op: Op) -> list[tuple[Dim, ...]]:
    if not op.results:
        return []
    shape = op.results[0].shape
    alike = [v for v in (*op.operands, *op.results) if len(v.shape) == len(shape)]
    return [tuple((v, d) for v in alike if v.shape[d] == size) for d, size in enumerate(shape)]


def _transpose(op: Op) -> list[tuple[Dim, ...]]:
    a, b = op.operands[0], op.results[0]
    return [((a, d), (b, i)) for i, d in enumerate(op.params["permutation"])]


def _broadcast(op: Op) -> list[tuple[Dim, ...]]:
    a, b = op.operands[0], op.results[0]
    places = op.params["broadcast_dimensions"]
    return [((a, d), (b, i)) for d, i in enumerate(places) if a.shape[d] == b.shape[i]]


def _reduce(op: Op) -> list[tuple[Dim, ...]]:
    gone = {axis % len(op.operands[0].shape) for axis in op.params["axes"]}
    left = [d for d in range(len(op.operands[0].shape)) if d not in gone]
    each = [*zip(op.operands, op.results, strict=False)]
    return [tuple(dim for a, b in each for dim in ((a, d), (b, i))) for i, d in enumerate(left)]


def _reshape(op: Op) -> list[tuple[Dim, ...]]:
    """Return the links of a reshape.

    Dims that stay as they are are linked; of dims that are split up or merged, only the major one
    is.
    """
    a, b = op.operands[0], op.results[0]
    before = [d for d, size in enumerate(a.shape) if size != 1]
    after = [d for d, size in enumerate(b.shape) if size != 1]
    found: list[tuple[Dim, ...]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        found.append(((a, before[i]), (b, after[j])))
        left, right = a.shape[before[i]], b.shape[after[j]]
        i, j = i + 1, j + 1
        while left != right and (i < len(before) or j < len(after)):
            if left < right and i < len(before):
                left, i = left * a.shape[before[i]], i + 1
            elif j < len(after):
                right, j = right * b.shape[after[j]], j + 1
            else:
                return found
    return found


def _dot_general(op: Op) -> list[tuple[Dim, ...]]:
    a, b = op.operands[:2]
    (left, right), (left_batch, right_batch) = op.params["dimension_numbers"]
    result = op.results[0]
    found: list[tuple[Dim, ...]] = [
        ((a, d), (b, e), (result, i))
        for i, (d, e) in enumerate(zip(left_batch, right_batch, strict=True))
    ]
    at = len(left_batch)
    for v, gone in ((a, {*left, *left_batch}), (b, {*right, *right_batch})):
        free = [d for d in range(len(v.shape)) if d not in gone]
        found += [((v, d), (result, at + i)) for i, d in enumerate(free)]
        at += len(free)
    return [*found, *(((a, d), (b, e)) for d, e in zip(left, right, strict=True))]


def _convolution(op: Op) -> list[tuple[Dim, ...]]:
    a, b, result = op.operands[0], op.operands[1], op.results[0]
    numbers = op.params["dimension_numbers"]
    return [
        ((a, numbers.lhs_spec[0]), (result, numbers.out_spec[0])),
        ((b, numbers.rhs_spec[0]), (result, numbers.out_spec[1])),
        ((a, numbers.lhs_spec[1]), (b, numbers.rhs_spec[1])),
    ]


def _gather(op: Op) -> list[tuple[Dim, ...]]:
    operand, indices, result = op.operands[0], op.operands[1], op.results[0]
    numbers = op.params["dimension_numbers"]
    sizes = op.params["slice_sizes"]
    batched = [d for d in range(len(result.shape)) if d not in numbers.offset_dims]
    mine = dict(
        zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    found: list[tuple[Dim, ...]] = [
        ((indices, i), (result, d), *([(operand, mine[i])] if i in mine else []))
        for i, d in enumerate(batched)
    ]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(operand.shape)) if d not in gone]
    for d, e in zip(window, numbers.offset_dims, strict=True):
        if sizes[d] == operand.shape[d]:
            found.append(((operand, d), (result, e)))
    return found


def _scatter(op: Op) -> list[tuple[Dim, ...]]:
    operand, indices, updates = op.operands[:3]
    result = op.results[0]
    numbers = op.params["dimension_numbers"]
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(operand.shape)) if d not in gone]
    linked = dict(zip(window, numbers.update_window_dims, strict=True))
    batched = [d for d in range(len(updates.shape)) if d not in numbers.update_window_dims]
    mine = dict(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    found: list[tuple[Dim, ...]] = []
    for d, size in enumerate(operand.shape):
        group: list[Dim] = [(operand, d), (result, d)]
        if d in linked and updates.shape[linked[d]] == size:
            group.append((updates, linked[d]))
        if d in mine:
            group += [(indices, mine[d]), (updates, batched[mine[d]])]
        found.append(tuple(group))
    others = [i for i in range(len(batched)) if i not in mine.values()]
    return [*found, *(((indices, i), (updates, batched[i])) for i in others)]


def _around_bodies(op: Op) -> list[tuple[Dim, ...]]:
    """Return the links between an op and its bodies.

    A dim that a loop goes over is linked to none inside.
    """
    found: list[tuple[Dim, ...]] = []
    nest, body = op.nest, op.bodies[0]
    if nest is None:  # a cond: operand 0 is the index
        for branch in op.bodies:
            found += _paired(op.operands[1:], branch.inputs)
            found += _paired(op.results, branch.outputs)
        return found
    for i, operand in enumerate(nest.operands):
        found += _paired([op.operands[operand]], [body.inputs[i]], int(i in nest.slices))
    for i, result in enumerate(nest.results):
        if result is not None:
            found += _paired([op.results[result]], [body.outputs[i]], int(i in nest.stacked))
    for i, j in nest.carries.items():
        found += _paired([body.outputs[j]], [body.inputs[i]])
    return found


def _paired(
    outer: Sequence[Value], inner: Sequence[Value], shift: int = 0
) -> list[tuple[Dim, ...]]:
    return [
        ((a, d + shift), (b, d))
        for a, b in zip(outer, inner, strict=True)
        for d in range(len(b.shape))
    ]


_RULES: dict[str, Callable[[Op], list[tuple[Dim, ...]]]] = {
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    **dict.fromkeys(SCATTERS, _scatter),
    **dict.fromkeys(REDUCTIONS | ARG_REDUCTIONS, _reduce),
}
