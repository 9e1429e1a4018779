"""Tell what is kept on the device, what is kept in host memory, and what is computed again.

The function is compared with itself without checkpoints, residual by residual: a residual that both
keep is known by the line that makes it, its primitive and its type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.program.avals import aval_on
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.transfers import refetched_nbytes, transfers
from jaxresid.inspector.residuals.provenance import provenance
from jaxresid.inspector.trace.function import Trace
from jaxresid.jax_compat.jaxpr_types import Var
from jaxresid.results import Aval, Computed, Offloading, Origin, Residual, Transfers


@dataclass(frozen=True, slots=True)
class KeptResidual:
    """A computed residual.

    Attributes:
      key: the same for what two variants of a function keep alike.
      nbytes: the bytes that it takes.
      memory: the memory that it is in, `device` or `host`.
      path: the path of the argument that it is made of alone; None where there is none.
      is_copy: whether it was moved to where it is.
    """

    key: Hashable
    nbytes: int
    memory: str
    path: str | None = None
    is_copy: bool = False


def kept_by(traced: Trace, program: Program) -> tuple[KeptResidual, ...]:
    """Return the computed residuals of a function's trace, without tracing its primal jaxpr.

    Args:
      traced: the trace of the function.
      program: the program of the trace.
    """
    return tuple(each for _, found in kept_each(traced, program) for each in found)


def kept_each(traced: Trace, program: Program) -> Iterator[tuple[Var, Sequence[KeptResidual]]]:
    """Yield each residual of a function's trace, with what it is if it is computed.

    Args:
      traced: the trace of the function.
      program: the program of the trace.
    """
    levels, top = traced.levels, Level(traced.forward)
    for var in traced.kept:
        made = provenance(levels, top, var, traced.inputs)
        aval = aval_on(program.values, var)
        memory = "host" if "host" in (aval.memory, made.memory) else "device"
        yield var, _kept(made.origin, aval, memory)


def kept_of(residuals: Iterable[Residual]) -> tuple[KeptResidual, ...]:
    """Return those of the residuals that are computed."""
    return tuple(k for r in residuals for k in _kept(r.origin, r.aval, r.aval.memory))


def kept_nbytes(kept: Iterable[KeptResidual]) -> tuple[int, int]:
    """Return the bytes of computed residuals in device and in host memory."""
    nbytes = Counter[str]()
    for each in kept:
        nbytes[each.memory] += each.nbytes
    return nbytes["device"], nbytes["host"]


def _kept(origin: Origin, aval: Aval, memory: str) -> list[KeptResidual]:
    if not isinstance(origin, Computed):
        return []
    line = origin.location and (origin.location.file, origin.location.line)
    key = (origin.primitive, origin.path, line, aval.dtype, aval.shape)
    is_copy = "device_put" in (origin.primitive, *origin.through)
    return [KeptResidual(key, aval.nbytes, memory, origin.path, is_copy)]


def offloading(
    program: Program,
    kept: Callable[[], Sequence[KeptResidual]],
    plain: Callable[[], Sequence[KeptResidual]],
    *,
    without_effect: bool = False,
) -> Offloading | None:
    """Return where the residuals of a program are; None where nothing is in host memory.

    Args:
      program: the program of a value with its gradients, or of a training step.
      kept: returns what the program keeps.
      plain: returns what it would keep without any checkpoint.
      without_effect: whether a policy offloads something that is not moved; this is reported even
        where nothing is in host memory.
    """
    moved, hosts = transfers(program), _on_host(program)
    if not (hosts or moved != Transfers() or without_effect):
        return None
    now, before = kept(), plain()
    paths = {
        role.path
        for value, role in zip(program.block.inputs, program.inputs, strict=True)
        if value.memory == "host" and role.path is not None
    }
    gone = _without(before, now)
    refetched = sum(k.nbytes for k in gone if k.path in paths)
    # Constants and parts that are taken by their index have no path.
    parts = sum(k.nbytes for k in gone if k.path is None and k.is_copy and k.memory == "device")
    refetched += min(parts, max(refetched_nbytes(program) - refetched, 0))
    return Offloading(
        kept_nbytes=sum(k.nbytes for k in now if k.memory == "device"),
        offloaded_nbytes=sum(k.nbytes for k in now if k.memory == "host"),
        recomputed_nbytes=sum(k.nbytes for k in gone) - refetched,
        added_nbytes=sum(k.nbytes for k in _without(now, before)),
        kept_without_nbytes=sum(k.nbytes for k in before),
        transfers=moved,
        host_arguments=hosts,
        refetched_nbytes=refetched,
        without_effect=without_effect,
    )


def _without(some: Sequence[KeptResidual], others: Sequence[KeptResidual]) -> list[KeptResidual]:
    """Return those of `some` that `others` do not have as well, each counted once."""
    left = Counter(k.key for k in others)
    found = []
    for k in some:
        if left[k.key]:
            left[k.key] -= 1
        else:
            found.append(k)
    return found


def _on_host(program: Program) -> tuple[tuple[str, int], ...]:
    """Return the bytes of the inputs in host memory by their kind."""
    found: dict[str, int] = {}
    for value, role in zip(program.block.inputs, program.inputs, strict=True):
        if value.memory == "host":
            found[role.kind] = found.get(role.kind, 0) + value.nbytes
    return tuple(found.items())
