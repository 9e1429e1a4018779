"""The static estimates of a program, by the code at hand."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from jaxresid.advice.compile.ahead_of_time import program_as_written
from jaxresid.advice.compile.rows import PolicyProgram
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.memory.compilers import profile_of
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.ops import all_ops
from jaxresid.inspector.report import subject
from jaxresid.xla.places import parse_place
from tests.benchmarks.accuracy.corpus import Program


def traced(program: Program, place: str) -> PolicyProgram:
    """Return a program as it is traced for a place."""
    fun, args = program.build()
    found = subject(Question(fun, args, on=parse_place(place), **program.options))
    with found.tracing():
        return program_as_written(found)


def has_loop(written: PolicyProgram) -> bool:
    """Return whether a program has a scan or a while loop."""
    return any(op.is_loop for op in all_ops(written.program.block.ops))


def forget() -> None:
    """Free what tracing keeps, which adds up over a corpus."""
    import jax

    jax.clear_caches()
    gc.collect()


def estimate_nbytes(written: PolicyProgram, place: str, jaxlib: str) -> int:
    """Return the estimate of a program's peak for a version of jaxlib, which need not be here."""
    return peak_nbytes(lower(written.program, profile_of(parse_place(place), jaxlib)))


def estimated(program: Program, compilers: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the estimates of a program's peak by place and jaxlib, in bytes."""
    written = traced(program, compilers[0][0])
    found = {each: estimate_nbytes(written, *each) for each in compilers}
    forget()
    return found
