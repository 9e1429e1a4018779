"""Count the collectives that a module runs, loops included."""

from __future__ import annotations

import json
from collections.abc import Iterator

from jaxresid.xla.hlo.module import HloModule, Instruction, module, origin
from jaxresid.xla.job import CollectiveOp

_COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)


def collectives(data: bytes) -> tuple[CollectiveOp, ...]:
    """Return the collectives that a serialized module runs; none where it cannot be read.

    A collective in two halves (`all-gather-start`, `all-gather-done`; or wrapped in an
    asynchronous computation) counts once, and so does one inside a fusion. Its bytes are those of
    its results, without the operands that a `-start` passes on.
    """
    try:
        hlo = module(data)
        by_opcode: dict[str, list[CollectiveOp]] = {}
        for op in _collectives(hlo, hlo.entry, 1, True, ()):
            by_opcode.setdefault(op.opcode, []).append(op)
    except (ValueError, IndexError, KeyError, RecursionError):
        return ()
    return tuple(
        CollectiveOp(
            opcode,
            sum(op.count for op in ops),
            sum(op.nbytes for op in ops),
            all(op.exact for op in ops),
        )
        for opcode, ops in sorted(by_opcode.items())
    )


def _collectives(
    hlo: HloModule, computation: int, trips: int, exact: bool, within: tuple[int, ...]
) -> Iterator[CollectiveOp]:
    if computation in within:
        return
    for i in hlo.computations[computation]:
        opcode = i.opcode.removesuffix("-start")
        if opcode in _COLLECTIVES:
            yield CollectiveOp(opcode, trips, trips * _result_nbytes(i), exact)
            continue
        inner, is_known = trips, exact
        if i.opcode == "while":
            n = known_trips(hlo, i)
            inner, is_known = trips * (1 if n is None else n), exact and n is not None
        elif i.opcode == "conditional":
            is_known = False
        elif i.opcode not in ("call", "fusion", "async-start"):
            continue
        for name in i.called:
            yield from _collectives(hlo, name, inner, is_known, (*within, computation))


def _result_nbytes(i: Instruction) -> int:
    """Return the bytes of a collective's results.

    All-gather-start and collective-permute-start return their operands, their results, and perhaps
    context; all-reduce-start its results.
    """
    if i.opcode.endswith("-start") and not i.opcode.startswith("all-reduce"):
        return i.shape.elements[1].nbytes
    return i.shape.nbytes


def known_trips(hlo: HloModule, loop: Instruction) -> int | None:
    """Return how often a while loop's body runs; None where it is not known.

    The number is the one that the compiler noted, or comes from a condition `i < n` and a body that
    adds one to `i`.
    """
    try:
        config = json.loads(loop.config or b"{}")
        return int(config["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError):
        return _counted_trips(hlo, loop)


def _counted_trips(hlo: HloModule, loop: Instruction) -> int | None:
    """Return the trips of a loop that counts an integer up to a constant; None for other loops.

    libtpu notes no trips; loops of a scan still count that way.
    """
    for name in loop.called:
        test = hlo.instructions[hlo.roots[name]]
        if test.opcode == "compare" and test.direction == "LT":
            break
    else:
        return None
    body = next(other for other in loop.called if other != name)
    counter, index = origin(hlo, test.operands[0])
    bound, _ = origin(hlo, test.operands[1])
    if counter.opcode != "parameter" or len(index) != 1:
        return None
    start, _ = origin(hlo, loop.operands[0], index)
    step, _ = origin(hlo, hlo.roots[body], index)
    if step.opcode != "add":
        return None
    terms = [origin(hlo, term)[0] for term in step.operands]
    steps = [term.literal for term in terms if term.literal is not None]
    counts = [term for term in terms if term.opcode == "parameter"]
    if steps != [1] or not counts or start.literal is None or bound.literal is None:
        return None
    return max(bound.literal - start.literal, 0)
