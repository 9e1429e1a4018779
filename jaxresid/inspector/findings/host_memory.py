"""Find uses of host memory that do not help.

These are offloads that move nothing, moves that a compiler starts all at once, and arguments that
are transposed in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxresid import jax_compat
from jaxresid.base.text.units import format_bytes
from jaxresid.base.thresholds import NEGLIGIBLE
from jaxresid.inspector.checkpoints.offers import Offer
from jaxresid.inspector.jaxpr.phases import BACKWARD, PROGRAM, RECOMPUTE
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Op, Value
from jaxresid.inspector.program.transfers import IN_PLACE, moves
from jaxresid.results import Computed, Finding, Location, Mark, Residual, Source

WITHOUT_EFFECT = "offload-without-effect"
# Of a policy that offloads, to a memory that is none as well.
_MOVE = "device_put"


def host_searches(
    residuals: Sequence[Residual],
    program: Program,
    offered: Sequence[Offer],
    places: OpSources,
    peak_nbytes: int | None,
) -> Iterator[tuple[str, Callable[[], Iterator[Finding]]]]:
    """Yield the searches for findings about host memory in a function or a training step.

    Args:
      residuals: the residuals of the function or step.
      program: the program of the value with its gradients, or of the step.
      offered: the checkpoints whose policies offload something.
      places: finds the source lines of ops.
      peak_nbytes: the peak; None, where it is not known, leaves out what is judged by its share.
    """
    yield WITHOUT_EFFECT, lambda: _without_effect(residuals, offered)
    if peak_nbytes is not None and any(v.memory == "host" for v in program.block.inputs):
        least = NEGLIGIBLE * peak_nbytes
        yield "unrolled-host-moves", lambda: _of_size(least, _unrolled(program, places))
        yield "transposed-host-scan", lambda: _of_size(least, _transposed(program, places))


def _of_size(least: float, findings: Iterator[Finding]) -> Iterator[Finding]:
    for finding in findings:
        nbytes = finding.measured["nbytes"]
        assert isinstance(nbytes, int)
        if nbytes >= least:
            yield finding


def _without_effect(residuals: Sequence[Residual], offered: Sequence[Offer]) -> Iterator[Finding]:
    moved: set[str | None] = set()
    for residual in residuals:
        if Mark.OFFLOADED in residual.marks and isinstance(residual.origin, Computed):
            moved.add(residual.origin.name)
    computed = [(r.nbytes, r.origin) for r in residuals if isinstance(r.origin, Computed)]
    for offer in offered:
        if moved and not set(offer.names) - moved:
            continue
        left = [n for n in offer.names if n not in moved]
        if left:
            what, which = ", ".join(repr(n) for n in left), "no residual of that name"
            staying = [n for n, o in computed if o.name in left]
            better = "name the value where it enters the checkpointed function, and offload to"
        else:
            what, which = "what it matches", "none of it"
            staying = [
                n for n, o in computed if o.primitive in offer.primitives and _MOVE in o.through
            ]
            better = "offload what the backward pass reads, to"
        because = (
            "it stays in device memory"
            if staying
            else "the backward pass does not need that value, or it is an output of the checkpoint"
        )
        yield Finding(
            WITHOUT_EFFECT,
            f"the policy of the checkpoint of `{offer.site.function}` offloads {what}, but {which}"
            f" is in host memory: {because}",
            offer.site.source,
            help=f"{better} 'pinned_host'",
            measured={"names": left, "device_nbytes": sum(staying)},
        )


@dataclass(slots=True)
class _MovesOfLine:
    """The moves that one line makes.

    Attributes:
      source: the source of the first of them.
      moved: the values that they made.
      reached: what is made of these values, with the values themselves.
      works: whether anything was computed from them since the last move.
      steps: the bytes of the moves between which nothing was computed.
    """

    source: Source
    moved: list[Value] = field(default_factory=list)
    reached: set[Value] = field(default_factory=set)
    works: bool = True
    steps: list[int] = field(default_factory=list)


def _unrolled(program: Program, places: OpSources) -> Iterator[Finding]:
    """Yield findings of moves to the device that straight-line code makes one after the other.

    They are of arguments in host memory, with work in between. A compiler starts all the moves as
    early as memory allows. libtpu 0.0.52 for a v5e: of 8 weights of 16 MiB 7 are on the device at
    once, of 16 of 1 GiB 14, of 32 of 1 GiB 14, all that it has room for; with gradients 13 of 16
    even where each step is checkpointed. In a scan it is one, with gradients two.
    """
    sources = _sources(program)
    lines: dict[Location, _MovesOfLine] = {}
    for op in program.block.ops:
        if op.phase in (BACKWARD, RECOMPUTE):
            continue
        for line in lines.values():
            if any(v in line.reached for v in op.operands):
                line.reached.update(op.results)
                line.works = line.works or op.name not in IN_PLACE
        for move in moves(op, frozenset()):
            where = places.location(op)
            if move.to == "device" and move.before in sources and where is not None:
                line = lines.setdefault(where, _MovesOfLine(places.source(op)))
                if line.works:
                    line.steps.append(0)
                line.works = False
                line.steps[-1] += move.nbytes
                line.moved.append(move.after)
                line.reached.add(move.after)
    is_one_pass = all(op.phase == PROGRAM for op in program.block.ops)
    body = "the body" if is_one_pass else "a checkpointed body"
    for line in lines.values():
        # Two are no loop: a helper moves the parameters, and in the update the state.
        if len(line.steps) < 3:
            continue
        nbytes, most = sum(v.nbytes for v in line.moved), max(v.nbytes for v in line.moved)
        yield Finding(
            "unrolled-host-moves",
            f"{len(line.moved)} values are moved from host memory here one after the other,"
            f" {format_bytes(nbytes)} in all: in straight-line code a compiler starts the moves as"
            " early as memory allows, so all of them are on the device at once, not"
            f" {format_bytes(max(line.steps))} at a time",
            line.source,
            help=f"stack them and scan over them, with the move inside {body}",
            measured={"nbytes": nbytes, "count": len(line.moved), "largest_nbytes": most},
        )


def _transposed(program: Program, places: OpSources) -> Iterator[Finding]:
    """Yield findings of arguments in host memory that are transposed before a loop slices them.

    XLA:CPU writes a transposed copy of all of it: 38 MiB of temporaries where the leading axis
    takes 6, of weights of 32 MiB. libtpu 0.0.52 makes it a view and then has to gather each trip's
    part from all over the array.
    """
    sources = _sources(program)
    transposes: dict[Value, Op] = {}
    by_line: dict[Location | None, tuple[Source, dict[str, int]]] = {}
    for op in program.block.ops:
        if op.name == "transpose" and op.operands[0] in sources and _reorders(op):
            transposes[op.results[0]] = op
        elif op.name in IN_PLACE and op.operands[0] in transposes:
            transposes.update(dict.fromkeys(op.results, transposes[op.operands[0]]))
        if op.name != "scan" or op.nest is None or op.phase in (BACKWARD, RECOMPUTE):
            continue
        for i in op.nest.slices:
            value = op.operands[op.nest.operands[i]]
            if value in transposes:
                source = places.source(transposes[value])
                _, by_path = by_line.setdefault(source.location, (source, {}))
                by_path[sources[value]] = value.nbytes
    for source, by_path in by_line.values():
        nbytes = sum(by_path.values())
        yield Finding(
            "transposed-host-scan",
            f"{', '.join(by_path)} ({format_bytes(nbytes)} in host memory) is transposed before a"
            " loop slices it, so the slice that a trip moves to the device is not contiguous in"
            " host memory: a compiler transposes the whole array first, or gathers each slice",
            source,
            help="store it in host memory in the loop's order, with the scanned axis first",
            measured={"nbytes": nbytes, "paths": list(by_path)},
        )


def _reorders(op: Op) -> bool:
    """Return whether a transpose changes the order of elements.

    One that moves only dims of size one does not.
    """
    shape = op.operands[0].shape
    order = [dim for dim in jax_compat.params(op.eqn)["permutation"] if shape[dim] != 1]
    return order != sorted(order)


def _sources(program: Program) -> dict[Value, str]:
    """Map the arguments in host memory, and the parts of them there, to the argument's path."""
    paths = {
        value: role.path or "a constant"
        for value, role in zip(program.block.inputs, program.inputs, strict=True)
        if value.memory == "host"
    }
    for op in program.block.ops:
        if op.name in IN_PLACE and op.operands[0] in paths:
            paths.update(dict.fromkeys(op.results, paths[op.operands[0]]))
    return paths
