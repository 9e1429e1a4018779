"""The static estimates of a program, by the code at hand."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from jaxresid.advice.compile.ahead_of_time import PolicyProgram, program_as_written
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.program.build import all_ops
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


def estimated(program: Program, places: Sequence[str]) -> dict[str, int]:
    """Return the estimates of a program's peak by place, in bytes."""
    written = traced(program, places[0])
    found = {place: written.estimate_nbytes(parse_place(place)) for place in places}
    forget()
    return found
