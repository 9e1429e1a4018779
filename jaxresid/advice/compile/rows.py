"""Say in a user's terms what a compiler says of a program."""

from __future__ import annotations

import linecache
import os
import textwrap
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.memory.compilers import has_estimate, profile_of
from jaxresid.inspector.memory.intervals import interval_of_program
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.residuals.matching import compiler_warnings, matched
from jaxresid.inspector.trace.traced import Traced
from jaxresid.results import Collective, Compiled, Residual, Source
from jaxresid.xla.job import Compilation
from jaxresid.xla.places import Place, for_devices

_FEW_NBYTES = 2**20  # of constants: not worth a note
_NOT_TIMED = (
    "not known without that GPU: which kernels XLA chooses by timing them; others may take more"
)
_OF_BOTH = (
    "which matmuls XLA takes it finds out by timing them on that GPU: here it fits if it does both"
    " with Triton's and with cuBLAS's"
)
_CUBLAS_ALONE = (
    "with cuBLAS's matmuls alone, as XLA cannot compile it with Triton's without that GPU"
)
_ERROR_LENGTH = 120


@dataclass(frozen=True, slots=True)
class PolicyProgram:
    """A traced function or training step with one policy.

    Attributes:
      residuals: The residuals that XLA's buffers are matched to.
      is_dead: Whether it is a step without its backward pass; whether such a step fits says
        nothing.
      asks_fit: Whether anybody asks if it fits; what is compiled to be compared alone need not.
    """

    policy: str
    trace: Traced
    program: Program
    residuals: tuple[Residual, ...] = ()
    is_dead: bool = False
    asks_fit: bool = True

    def estimate_nbytes(self, place: Place) -> int | None:
        if not has_estimate(place):
            return None
        return peak_nbytes(lower(self.program, profile_of(place)))


def estimated(program: PolicyProgram, place: Place) -> dict[str, Any]:
    nbytes = program.estimate_nbytes(place)
    if nbytes is None:
        return {}
    around = interval_of_program(nbytes, program.program, place.kind, jax_compat.compilers())
    return {
        "estimate_nbytes": nbytes,
        "estimate_low_nbytes": around.low_nbytes if around else None,
        "estimate_high_nbytes": around.high_nbytes if around else None,
        "profile": profile_of(place).name,
    }


def compiled_row(
    program: PolicyProgram, place: Place, compilation: Compilation, devices: int = 1
) -> Compiled:
    """Return what a compiler said of a program, in the user's terms."""
    place = for_devices(place, devices)
    stats: dict[str, Any] = dict(compilation.stats)
    nbytes = stats.pop("peak_nbytes", None)
    sizes = [] if place.memory_nbytes is None else [place.memory_nbytes]
    if compilation.capacity_nbytes is not None:
        sizes.append(max(compilation.capacity_nbytes - place.margin_nbytes, 0))
    capacity = min(sizes, default=None)
    if compilation.is_out_of_memory:
        nbytes = compilation.required_nbytes
    fits = None if nbytes is None or capacity is None else nbytes <= capacity
    if capacity is not None and compilation.cublas_nbytes is not None:
        fits = fits and compilation.cublas_nbytes <= capacity
    buffers, matched_nbytes = matched(
        compilation.buffers, program.residuals, program.trace.parameters
    )
    live = compilation.live_nbytes
    notes = list(compilation.notes)
    cublas_nbytes = compilation.cublas_nbytes
    if place.target_config and compilation.error is None:
        if compilation.triton_error is not None:
            error = textwrap.shorten(compilation.triton_error, _ERROR_LENGTH, placeholder="…")
            notes.append(f"{_CUBLAS_ALONE}: {error}")
            cublas_nbytes = nbytes
        notes.append(_OF_BOTH if compilation.cublas_nbytes is not None else _NOT_TIMED)
    if place.devices is not None and devices < place.devices and compilation.error is None:
        notes.insert(0, _unused(devices, place.devices))
    constants = sum(b.nbytes for b in compilation.buffers if b.kind == "constant")
    if not compilation.is_out_of_memory and nbytes and constants > max(nbytes // 100, _FEW_NBYTES):
        notes.append(f"XLA's peak does not include its constants, {format_bytes(constants)}")
    row = replace(
        Compiled(on=place.text, policy=program.policy, devices=devices),
        **stats,
        peak_nbytes=nbytes,
        cublas_peak_nbytes=cublas_nbytes,
        cublas_error=compilation.cublas_error,
        **estimated(program, place),
        capacity_nbytes=capacity,
        fits=False if compilation.is_out_of_memory else None if program.is_dead else fits,
        seconds=compilation.seconds,
        cached=compilation.cached,
        error=compilation.error,
        compiler=compilation.compiler,
        buffers=tuple(replace(b, source=_as_reported(b.source)) for b in buffers),
        matched_nbytes=matched_nbytes if live is not None else None,
        live_nbytes=live,
        collectives=tuple(
            Collective(c.opcode, c.count, c.nbytes, c.exact) for c in compilation.collectives
        ),
        notes=tuple(notes),
        warnings=tuple(
            replace(w, source=_as_reported(w.source))
            for w in compiler_warnings(compilation.messages, program.residuals)
        ),
    )
    return replace(row, fits=None) if row.fits and row.needed_for(capacity) is None else row


def _as_reported(source: Source) -> Source:
    """Return a line that a compiler names as the report names lines: relative, with its code."""
    location = source.location
    if location is None or location.code:
        return source
    code = linecache.getline(location.file, location.line).strip()
    file = location.file.removeprefix(os.path.join(os.getcwd(), ""))
    return replace(source, location=replace(location, file=file, code=code))


def _unused(devices: int, there: int) -> str:
    return (
        f"the program uses only {devices} of the {there} devices; to split it over all of them,"
        " give its arguments shardings"
    )
