"""Find the dims of an op's operands and results that are one and the same dim.

What splits one of them splits the others. There is a rule per class of primitives. Everything else
links, between arrays of one rank, the dims of one size: so do elementwise ops, `concatenate`,
`slice`, `pad`, `sort` and `cumsum`.
"""

from __future__ import annotations

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
      repeated: the operands that an op which works element by element repeats along some dims.
    """

    groups: tuple[tuple[Dim, ...], ...]
    is_plain: bool = False
    repeated: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Flows:
    """The links between an op and its bodies; a dim that a loop goes over is linked to none inside.

    Attributes:
      sliced: of what a loop takes slices, and these.
      stacked: of what a trip makes, and the stack of all trips'.
      handed: of each value that is handed into the bodies, on to the next trip, or out of them, the
        groups of its dims.
    """

    sliced: tuple[tuple[Dim, ...], ...] = ()
    stacked: tuple[tuple[Dim, ...], ...] = ()
    handed: tuple[tuple[tuple[Dim, ...], ...], ...] = ()


def links(op: Op) -> Links:
    """Return the dims of an op without bodies that are the same dim."""
    if op.name == BARRIER:
        pairs = zip(op.operands, op.results, strict=True)
        ranked = ((a, b, range(min(len(a.shape), len(b.shape)))) for a, b in pairs)
        return Links(tuple(((a, d), (b, d)) for a, b, dims in ranked for d in dims), True)
    rule = _RULES.get(op.name)
    if rule is not None:
        return Links(tuple(g for g in rule(op) if len(g) > 1))
    operands = dict.fromkeys(op.operands)
    repeated = tuple(v for v in operands if v.shape and _is_repeated(v, op.results))
    shapes = {v.shape for v in (*op.operands, *op.results) if v.shape and v not in repeated}
    return Links(tuple(_alike(op)), len(shapes) == 1, repeated)


def _is_repeated(value: Value, results: Sequence[Value]) -> bool:
    """Return whether a value has the shape of the results, but for dims of one element."""
    shapes = {v.shape for v in results}
    if len(shapes) != 1 or value.shape in shapes:
        return False
    (shape,) = shapes
    pairs = [*zip(value.shape, shape, strict=False)]
    return len(value.shape) == len(shape) and all(a in (1, b) for a, b in pairs)


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
    pairs = [*zip(op.operands, op.results, strict=False)]
    return [tuple(dim for a, b in pairs for dim in ((a, d), (b, i))) for i, d in enumerate(left)]


def _reshape(op: Op) -> list[tuple[Dim, ...]]:
    """Link the dims that stay as they are; of those split up or merged, only the major one."""
    a, b = op.operands[0], op.results[0]
    before = [d for d, size in enumerate(a.shape) if size != 1]
    after = [d for d, size in enumerate(b.shape) if size != 1]
    groups: list[tuple[Dim, ...]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        groups.append(((a, before[i]), (b, after[j])))
        left, right = a.shape[before[i]], b.shape[after[j]]
        i, j = i + 1, j + 1
        while left != right and (i < len(before) or j < len(after)):
            if left < right and i < len(before):
                left, i = left * a.shape[before[i]], i + 1
            elif j < len(after):
                right, j = right * b.shape[after[j]], j + 1
            else:
                return groups
    return groups


def _dot_general(op: Op) -> list[tuple[Dim, ...]]:
    a, b = op.operands[:2]
    (left, right), (left_batch, right_batch) = op.params["dimension_numbers"]
    result = op.results[0]
    groups: list[tuple[Dim, ...]] = [
        ((a, d), (b, e), (result, i))
        for i, (d, e) in enumerate(zip(left_batch, right_batch, strict=True))
    ]
    at = len(left_batch)
    for v, gone in ((a, {*left, *left_batch}), (b, {*right, *right_batch})):
        free = [d for d in range(len(v.shape)) if d not in gone]
        groups += [((v, d), (result, at + i)) for i, d in enumerate(free)]
        at += len(free)
    return [*groups, *(((a, d), (b, e)) for d, e in zip(left, right, strict=True))]


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
    groups: list[tuple[Dim, ...]] = [
        ((indices, i), (result, d), *([(operand, mine[i])] if i in mine else []))
        for i, d in enumerate(batched)
    ]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(operand.shape)) if d not in gone]
    for d, e in zip(window, numbers.offset_dims, strict=True):
        if sizes[d] == operand.shape[d]:
            groups.append(((operand, d), (result, e)))
    return groups


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
    groups: list[tuple[Dim, ...]] = []
    for d, size in enumerate(operand.shape):
        group: list[Dim] = [(operand, d), (result, d)]
        if d in linked and updates.shape[linked[d]] == size:
            group.append((updates, linked[d]))
        if d in mine:
            group += [(indices, mine[d]), (updates, batched[mine[d]])]
        groups.append(tuple(group))
    others = [i for i in range(len(batched)) if i not in mine.values()]
    return [*groups, *(((indices, i), (updates, batched[i])) for i in others)]


def flows(op: Op) -> Flows:
    """Return the links between an op and its bodies."""
    nest, body = op.nest, op.bodies[0]
    if nest is None:  # a cond: operand 0 is the index
        into = zip(op.operands[1:], *(branch.inputs for branch in op.bodies), strict=True)
        out = zip(op.results, *(branch.outputs for branch in op.bodies), strict=True)
        return Flows(handed=tuple(map(_alike_in_all, (*into, *out))))
    outer = {i: op.results[result] for i, result in enumerate(nest.results) if result is not None}
    sliced: list[tuple[Dim, ...]] = []
    stacked: list[tuple[Dim, ...]] = []
    handed = []
    for i, operand in enumerate(nest.operands):
        whole, inner = op.operands[operand], body.inputs[i]
        if i in nest.slices:
            sliced += [((whole, d + 1), (inner, d)) for d in range(len(inner.shape))]
            continue
        same = [whole, inner]
        if i in nest.carries:
            same += [body.outputs[nest.carries[i]]]
            same += [outer[nest.carries[i]]] if nest.carries[i] in outer else []
        handed.append(_alike_in_all(same))
    for i in nest.stacked:
        inner = body.outputs[i]
        stacked += [((inner, d), (outer[i], d + 1)) for d in range(len(inner.shape))]
    return Flows(tuple(sliced), tuple(stacked), tuple(handed))


def _alike_in_all(values: Sequence[Value]) -> tuple[tuple[Dim, ...], ...]:
    return tuple(tuple((v, d) for v in values) for d in range(len(values[0].shape)))


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
