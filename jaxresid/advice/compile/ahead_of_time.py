"""`jaxresid compile`: report what XLA says about a function, for devices here and elsewhere."""

from __future__ import annotations

import contextlib
import linecache
import math
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, JaxresidError, summary
from jaxresid.base.option_types import Mode
from jaxresid.base.progress import Progress
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.question import Question, in_two_calls
from jaxresid.inspector.memory.compilers import has_estimate, profile_of
from jaxresid.inspector.memory.intervals import interval_of_program
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.report import subject
from jaxresid.inspector.residuals.matching import compiler_warnings, matched
from jaxresid.inspector.subject.base import Subject, gc_paused
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.inspector.trace.traced import Traced
from jaxresid.results import Collective, Compiled, CompiledReport, Residual, Source
from jaxresid.xla.chosen import choose
from jaxresid.xla.job import Compilation, Job, LoweredModule
from jaxresid.xla.places import Place, for_devices, why_unavailable
from jaxresid.xla.processes import pool
from jaxresid.xla.processes.cache import CompileCache, default_directory

WRITTEN = "as-written"
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
class CompileSettings:
    """How programs are compiled.

    Attributes:
      flags: Options of the compiler as pairs of name and value.
      timeout_s: Seconds after which a compile is given up.
      memory_nbytes: Bytes of memory above which a compile is given up; None means no limit.
      workers: How many compiles run at once; None means as many as do not slow each other down.
      executor: What runs the compiles; None means processes on this machine.
      cache: Where results are looked up and kept; None means nowhere.
    """

    flags: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 600.0
    memory_nbytes: int | None = None
    workers: int | None = None
    executor: Executor | None = None
    cache: CompileCache | None = None


@dataclass(frozen=True, slots=True)
class PolicyProgram:
    """A traced function or training step with one policy.

    Attributes:
      policy: The name of the policy.
      trace: The trace.
      program: What its peak is estimated from.
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
        """Return the static estimate of its peak at a place, in bytes; None without one."""
        if not has_estimate(place):
            return None
        return peak_nbytes(lower(self.program, profile_of(place)))


@in_two_calls
def compile(
    fun: Callable[..., Any],
    *,
    on: str | Place | Sequence[str | Place] | None = None,
    flags: Mapping[str, str | bool | float] | None = None,
    timeout: float = 600.0,
    memory_limit: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    cache: bool = True,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    mode: Mode = "auto",
    mesh: Any = None,
) -> Callable[..., CompiledReport]:
    """Return a function that compiles `fun` with its gradients, or a training step, ahead of time.

    Use it as `jaxresid.compile(fun, on="tpu:v5e:2x4")(*args, **kwargs)`.

    Nothing is run, and only the compiler, which has a process of its own for each place, allocates
    anything. What goes wrong there is the `error` of its row. A program that is split over several
    devices is compiled for that many.

    Args:
      fun: The function to compile, as for `jaxresid.inspect`.
      on: The place to compile for, or several: `gpu:h100:8`, `tpu:v5e:2x4` and such, whose devices
        need not be present (extras `jaxresid[gpu]` and `jaxresid[tpu]`), `cpu`, or `gpu` for the
        GPUs of this machine. None means as for `jaxresid.inspect`.
      flags: Options of the compiler, as `compiler_options` of `jax.stages.Lowered.compile`.
      timeout: Seconds after which a compile is given up.
      memory_limit: Bytes of memory above which a compile is given up.
      workers: How many compiles run at once.
      executor: What runs the compiles instead of processes on this machine.
      cache: Whether results are looked up in the cache and kept there.
      argnums: Positional arguments to differentiate, as for `jaxresid.inspect`.
      has_aux: Whether `fun` returns `(output, auxiliary data)`, as for `jaxresid.inspect`.
      mode: Whether `fun` is a loss or a program as it is, as for `jaxresid.inspect`.
      mesh: The mesh that the program is split over, as for `jaxresid.inspect`.

    Returns:
      A function of the arguments of `fun` that returns a `CompiledReport`.

    Raises:
      JaxresidError: As `jaxresid.inspect`, or because there is no such place.
    """
    places = places_of(on)
    question = Question(fun, argnums=argnums, has_aux=has_aux, mode=mode, on=places[0], mesh=mesh)
    chosen = settings(flags, timeout, memory_limit, workers, executor, cache=cache)

    def compiled(*args: Any, **kwargs: Any) -> CompiledReport:
        return compiled_report(subject(question.of(args, kwargs)), places, chosen())

    return compiled


def settings(
    flags: Mapping[str, str | bool | float] | None,
    timeout: float,
    memory_limit: int | None,
    workers: int | None,
    executor: Executor | None,
    *,
    cache: bool,
) -> Callable[[], CompileSettings]:
    """Return a function that makes the `CompileSettings` that these options amount to.

    Each call makes a new cache, because a cache remembers what to warn of.
    """
    chosen = CompileSettings(
        flags=tuple((name, str(value)) for name, value in (flags or {}).items()),
        timeout_s=timeout,
        memory_nbytes=memory_limit,
        workers=workers,
        executor=executor,
    )
    return lambda: replace(chosen, cache=CompileCache(default_directory()) if cache else None)


def compiled_report(
    subject: Subject,
    places: Sequence[Place],
    settings: CompileSettings,
    progress: Progress | None = None,
) -> CompiledReport:
    """Compile a traced function for several places and return the report, as `compile` does."""
    with gc_paused(), subject.tracing():
        program = program_as_written(subject)
    (rows,) = compiled_rows([program], places, settings, progress)
    return CompiledReport(
        target=subject.target,
        jax=subject.jax,
        places=tuple(map(subject.info_of, places)),
        compiled=rows,
        mesh=subject.mesh,
        warnings=(*subject.warnings, *warnings_of(settings)),
    )


def program_as_written(subject: Subject) -> PolicyProgram:
    """Return the program of a subject with its checkpoints as its code has them."""
    return PolicyProgram(
        WRITTEN, subject.trace, subject.program, subject.residuals, subject.is_dead
    )


def places_of(on: str | Place | Sequence[str | Place] | None) -> tuple[Place, ...]:
    """Return the places that are asked for, each once; for None the one that `choose` returns.

    Raises:
      InputsError: There is none, or a name is not that of a place.
    """
    asked = (on,) if on is None or isinstance(on, str | Place) else tuple(on)
    if not asked:
        raise InputsError("no place to compile for; write cpu, gpu:h100 or tpu:v5e:2x4")
    return tuple(dict.fromkeys(choose(each, compiles=True) for each in asked))


def warnings_of(settings: CompileSettings) -> tuple[str, ...]:
    """Return the warnings about what went wrong with the cache."""
    return tuple(settings.cache.warnings) if settings.cache is not None else ()


def compiled_rows(
    programs: Sequence[PolicyProgram],
    places: Sequence[Place],
    settings: CompileSettings,
    progress: Progress | None = None,
) -> tuple[tuple[Compiled, ...], ...]:
    """Compile several programs and return the rows of each, in the order of the places.

    Args:
      programs: The programs to compile.
      places: The places to compile each for.
      settings: How to compile.
      progress: Called with a text that says what is being done.
    """
    rows = dict(rows_by_number(programs, places, settings, progress))
    return tuple(tuple(rows[i, j] for j in range(len(places))) for i in range(len(programs)))


def rows_by_number(
    programs: Sequence[PolicyProgram],
    places: Sequence[Place],
    settings: CompileSettings,
    progress: Progress | None = None,
    *,
    admits: Callable[[int, Job], bool] | None = None,
    until: float = math.inf,
    budget_nbytes: int | None = None,
) -> Iterator[tuple[tuple[int, int], Compiled]]:
    """Compile several programs and yield the rows, each with the numbers of its program and place.

    Args:
      programs: As for `compiled_rows`.
      places: As for `compiled_rows`.
      settings: As for `compiled_rows`.
      progress: As for `compiled_rows`.
      admits: Whether to compile the job of a program, by its number; where not there is no row.
      until: When to stop, by `time.monotonic`; what has not been compiled by then has no row.
      budget_nbytes: Bytes that the programs have to fit into; None: what a place has.
    """
    jobs = _Jobs(
        programs, places, settings, progress, admits or (lambda i, job: True), budget_nbytes
    )
    with contextlib.closing(
        pool.compile_jobs(
            jobs,
            executor=settings.executor,
            workers=settings.workers,
            cache=settings.cache,
            progress=progress,
            until=until,
        )
    ) as done:
        for index, compilation in done:
            (i, j), devices = jobs.taken[index]
            yield (i, j), compiled_row(programs[i], places[j], compilation, devices)
    yield from jobs.refused.items()


class _Jobs:
    """The jobs of programs and places, made as they are asked for.

    Attributes:
      taken: For each job so far the numbers of its program and place, and over how many devices it
        is split.
      refused: The rows of programs for which no job could be made.
    """

    def __init__(
        self,
        programs: Sequence[PolicyProgram],
        places: Sequence[Place],
        settings: CompileSettings,
        progress: Progress | None,
        admits: Callable[[int, Job], bool],
        budget_nbytes: int | None,
    ) -> None:
        self.taken: list[tuple[tuple[int, int], int]] = []
        self.refused: dict[tuple[int, int], Compiled] = {}
        self._programs = programs
        self._places = places
        self._admits = admits
        self._settings = settings
        self._progress = progress
        self._budget_nbytes = budget_nbytes

    def __length_hint__(self) -> int:
        return len(self._programs) * len(self._places)

    def __iter__(self) -> Iterator[Job]:
        for i, program in enumerate(self._programs):
            made: dict[str, LoweredModule | str] = {}
            for j, place in enumerate(self._places):
                module = _module(program, place, made, self._progress)
                job = None
                if not isinstance(module, str):
                    try:
                        job = compile_job(program.policy, module, place, self._settings)
                        if self._budget_nbytes is not None:
                            job = replace(job, within_nbytes=self._budget_nbytes)
                        if program.is_dead or not program.asks_fit:
                            job = replace(job, within_nbytes=None)
                    except InputsError as e:
                        module = str(e)
                if job is None or isinstance(module, str):
                    self.refused[i, j] = Compiled(
                        on=place.text,
                        policy=program.policy,
                        error=module if isinstance(module, str) else None,
                        **_estimated(program, place),
                    )
                    continue
                if self._admits(i, job):
                    self.taken.append(((i, j), module.devices))
                    yield job


def compile_job(policy: str, module: LoweredModule, place: Place, settings: CompileSettings) -> Job:
    """Return the job that compiles a module for a place, to be told whether it fits there.

    Raises:
      InputsError: No known topology has as many devices as the module is split over.
    """
    return Job(
        module=module,
        place=for_devices(place, module.devices),
        flags=settings.flags,
        timeout_s=settings.timeout_s,
        memory_nbytes=settings.memory_nbytes,
        within_nbytes=place.memory_nbytes,
        label=f"{policy} for {place.text}",
    )


def _module(
    program: PolicyProgram,
    place: Place,
    made: dict[str, LoweredModule | str],
    progress: Progress | None,
) -> LoweredModule | str:
    """Return a program lowered for a place, or the reason why it cannot be.

    `made` holds what was lowered for each platform so far.
    """
    reason = why_unavailable(place)
    if reason is not None:
        return reason
    platform = place.platform
    if platform not in made:
        if progress is not None:
            progress(f"lowering {program.policy} for {place.text}")
        try:
            made[platform] = lowered(program.trace, platform)
        except JaxresidError as e:
            made[platform] = " ".join(str(e).split())
        except Exception as e:
            made[platform] = summary(e)
    return made[platform]


def _estimated(program: PolicyProgram, place: Place) -> dict[str, Any]:
    """Return the fields of `Compiled` that the estimate for a place fills; none without one."""
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
    """Return what a compiler said of a program, in the user's terms.

    Args:
      program: The program that was compiled.
      place: The place that it was compiled for.
      compilation: The result of the compile.
      devices: How many devices the program is split over.
    """
    place = for_devices(place, devices)
    stats: dict[str, Any] = dict(compilation.stats)
    nbytes = stats.pop("peak_nbytes", None)
    known = [] if place.memory_nbytes is None else [place.memory_nbytes]
    if compilation.capacity_nbytes is not None:
        known.append(max(compilation.capacity_nbytes - place.margin_nbytes, 0))
    capacity = min(known, default=None)
    if compilation.is_out_of_memory:
        nbytes = compilation.required_nbytes
    fits = None if nbytes is None or capacity is None else nbytes <= capacity
    if capacity is not None and compilation.cublas_nbytes is not None:
        fits = fits and compilation.cublas_nbytes <= capacity
    found, matched_nbytes = matched(
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
        **_estimated(program, place),
        capacity_nbytes=capacity,
        fits=False if compilation.is_out_of_memory else None if program.is_dead else fits,
        seconds=compilation.seconds,
        cached=compilation.cached,
        error=compilation.error,
        compiler=compilation.compiler,
        buffers=tuple(replace(b, source=_as_reported(b.source)) for b in found),
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


__all__ = [
    "CompileSettings",
    "PolicyProgram",
    "compile",
    "compile_job",
    "compiled_report",
    "compiled_row",
    "compiled_rows",
    "places_of",
    "program_as_written",
    "rows_by_number",
    "warnings_of",
]
