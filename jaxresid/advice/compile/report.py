"""`jaxresid.inspect`: a report and, where the compiler is asked, its figures and its verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jaxresid.advice.compile.ahead_of_time import (
    CompileSettings,
    PolicyProgram,
    program_as_written,
    warnings_of,
)
from jaxresid.advice.compile.changes import (
    changed_programs,
    too_late,
    with_changes_judged,
)
from jaxresid.advice.compile.limited import COMPILE_SECONDS, LimitedCompiles
from jaxresid.base.crashes import Crash
from jaxresid.base.option_types import Mode
from jaxresid.inspector.call.question import Question, in_two_calls
from jaxresid.inspector.checkpoints.judging import JudgedCheckpoint
from jaxresid.inspector.conclusions import concluded
from jaxresid.inspector.memory.compilers import has_estimate
from jaxresid.inspector.report import inspection
from jaxresid.inspector.subject.base import Inspection
from jaxresid.results import Checkpoint, Compiled, Report
from jaxresid.xla.places import Place
from jaxresid.xla.processes.cache import CompileCache, default_directory

# So many checkpoints are compiled without, at most.
MOST_CHECKPOINTS = 10


@in_two_calls
def inspect(
    fun: Callable[..., Any],
    *,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    mode: Mode = "auto",
    on: str | Place | None = None,
    mesh: Any = None,
    compile: bool = False,
    compile_time: float = COMPILE_SECONDS,
    trips: int | None = None,
    lifetimes: bool = False,
) -> Callable[..., Report]:
    """Report what the backward pass of `fun` keeps, costs and takes.

    `jaxresid.inspect(fun)(*args, **kwargs)`: as with `jax.make_jaxpr`, options go into the first
    call and the function's own arguments, whatever they are called, into the second. Those are
    arrays or `jax.ShapeDtypeStruct`s, in any pytree; bools, integers, strings, None and callables
    are static; arrays and floats are traced. Nothing is computed and nothing allocated. For a CPU,
    where peaks are not estimated, `fun` is compiled anyway.

    Args:
      fun: a function that JAX can trace.
      argnums: positional arguments to differentiate; None: every float or complex leaf of all
        arguments, as `jax.ad_checkpoint.print_saved_residuals` does.
      has_aux: `fun` returns `(output, auxiliary data)`.
      mode: `loss` differentiates `fun`; `program` takes it as it is, with the gradients that it
        takes itself, if any; `auto`: loss if it returns one real scalar (and auxiliary data) of
        float arguments that it does not update, else program.
      on: the place that the figures are for: `gpu:h100`, `tpu:v5e:2x4`, `cpu` ...; None: the
        accelerator that JAX sees here, else `gpu:h100`.
      mesh: the mesh that it is split over: a `jax.sharding.Mesh`, an AbstractMesh, or a dict of
        axes and their sizes, as many of this process's CPU devices; arguments without a sharding
        are on all of it. None: the mesh of the arguments' own shardings. Bytes are then one
        device's. Where the mesh's axes are not explicit, XLA:CPU compiles the forward pass to see
        how the residuals are split.
      compile: also compile `fun` for that place, as `jaxresid.compile` does, and `fun` without each
        of the ten checkpoints that drop most; the verdicts on these are then XLA's. So it is with
        each change that a finding proposes, made in the trace, which XLA confirms or refutes.
      compile_time: seconds that compiling may take, all together; a checkpoint that has no verdict
        of XLA then says so.
      trips: how often while loops run whose number of trips the program decides, for FLOPs and
        times; None: the bound that the condition has, such as `max_steps`, and once without one.
      lifetimes: also report from when until when each value is live, op by op, in the program and
        without each of its checkpoints; not for a CPU, where nothing is estimated.

    Returns:
      a function of the arguments of `fun` that returns a `Report`.

    Raises:
      InputsError: the options or the arguments do not fit, or nothing can be differentiated.
      TraceError: the function fails to trace.
      MissingJaxError: jax is missing or older than 0.7.
    """
    question = Question(
        fun,
        argnums=argnums,
        has_aux=has_aux,
        mode=mode,
        on=on,
        mesh=mesh,
        lifetimes=lifetimes,
        trips=trips,
    )

    def inspected(*args: Any, **kwargs: Any) -> Report:
        found = inspection(question.of(args, kwargs))
        if compile or not has_estimate(found.subject.place):
            settings = CompileSettings(cache=CompileCache(default_directory()))
            compiles = LimitedCompiles(found.subject.place, settings, limit_s=compile_time)
            found = confirmed(found, compiles, checkpoints=compile)
        return found.report

    return inspected


def confirmed(
    inspection: Inspection, compiles: LimitedCompiles, *, checkpoints: bool = True
) -> Inspection:
    """Return an inspection with what XLA says at its place, of its checkpoints too.

    The function or step is compiled, and so it is without each of those checkpoints that drop most,
    and with each of the changes that findings propose.

    Args:
      inspection: The inspection.
      compiles: The compiles, for the place of the inspection.
      checkpoints: Whether it is compiled without its checkpoints, and with changes, as well.
    """
    subject, report = inspection.subject, inspection.report
    asked = sorted(
        (each for each in inspection.judged if each.judgement is not None and checkpoints),
        key=lambda each: -each.dropped_nbytes,
    )
    asked, others = asked[:MOST_CHECKPOINTS], asked[MOST_CHECKPOINTS:]
    late = too_late(compiles)
    crashes: list[Crash] = []
    changes = changed_programs(inspection, crashes) if checkpoints else ()
    row, *rows = compiles.compiled(
        [program_as_written(subject), *map(_without, asked), *(each.program for each in changes)]
    )
    verdicts = {
        id(each): _judged_by(each, row, without, late)
        for each, without in zip(asked, rows[: len(asked)], strict=True)
    }
    for each in others:
        reason = f"only the {MOST_CHECKPOINTS} that drop most are compiled"
        verdicts[id(each)] = each.unconfirmed(reason)
    made = replace(
        report,
        compiled=(row or Compiled(on=subject.place.text, error=late),),
        checkpoints=tuple(verdicts.get(id(each), each.checkpoint) for each in inspection.judged),
        warnings=(*report.warnings, *warnings_of(compiles.settings)),
    )
    words = report.words
    found = replace(inspection, report=made).with_crashes(crashes)
    if checkpoints:
        found = with_changes_judged(found, changes, row, rows[len(asked) :], late)
    return concluded(found, words)


def _without(judged: JudgedCheckpoint) -> PolicyProgram:
    """Return the program without a checkpoint."""
    assert judged.judgement is not None
    checkpoint, without = judged.checkpoint, judged.judgement.without()
    where = checkpoint.location
    name = f"without {checkpoint.function}" + (f" at {where.file}:{where.line}" if where else "")
    return PolicyProgram(name, without.trace, without.program, asks_fit=False)


def _judged_by(
    judged: JudgedCheckpoint, row: Compiled | None, without: Compiled | None, late: str
) -> Checkpoint:
    """Return a checkpoint with XLA's verdict, or with the reason why there is none.

    Args:
      judged: The checkpoint.
      row: What XLA says of the program with it; None where there was no time for that.
      without: What XLA says of the program without it; None where there was no time for that.
      late: What to say where there was no time.
    """
    nbytes = None if row is None else row.peak_nbytes
    without_nbytes = None if without is None else without.peak_nbytes
    if nbytes is not None and without_nbytes is not None:
        return judged.by_xla(nbytes, without_nbytes)
    found, which = (row, "with it") if nbytes is None else (without, "without it")
    reason = late if found is None else found.error or "XLA reports no peak"
    return judged.unconfirmed(f"the program {which} was not compiled: {reason}")


__all__ = ["MOST_CHECKPOINTS", "confirmed", "inspect"]
