"""`jaxresid compile`: report what XLA says about a function, for devices here and elsewhere."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

from jaxresid.advice.compile.rows import PolicyProgram, compiled_row, estimated
from jaxresid.base.errors import InputsError, JaxresidError, summary
from jaxresid.base.option_types import Mode
from jaxresid.base.progress import Progress
from jaxresid.inspector.call.question import Question, in_two_calls
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import Subject, gc_paused
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.results import Compiled, CompiledReport
from jaxresid.xla.chosen import choose
from jaxresid.xla.job import Job, LoweredModule
from jaxresid.xla.places import Place, for_devices, why_unavailable
from jaxresid.xla.processes import pool
from jaxresid.xla.processes.cache import CompileCache, default_directory

WRITTEN = "as-written"


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """How programs are compiled.

    Attributes:
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


def cached_settings() -> CompileSettings:
    """Return the defaults, with the user's cache."""
    return CompileSettings(cache=CompileCache(default_directory()))


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
      argnums, has_aux, mode, mesh: As for `jaxresid.inspect`.

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
    """Return what makes `CompileSettings`, each with a cache and so with warnings of its own."""
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
    return tuple(dict.fromkeys(choose(place, compiles=True) for place in asked))


def warnings_of(settings: CompileSettings) -> tuple[str, ...]:
    return tuple(settings.cache.warnings) if settings.cache is not None else ()


def compiled_rows(
    programs: Sequence[PolicyProgram],
    places: Sequence[Place],
    settings: CompileSettings,
    progress: Progress | None = None,
) -> tuple[tuple[Compiled, ...], ...]:
    """Compile several programs and return the rows of each, in the order of the places."""
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
    ) as compilations:
        for index, compilation in compilations:
            (i, j), devices = jobs.taken[index]
            yield (i, j), compiled_row(programs[i], places[j], compilation, devices)
    yield from jobs.refused.items()


@dataclass(frozen=True, slots=True)
class _Jobs:
    """The jobs of programs and places, made as they are asked for.

    Attributes:
      taken: For each job so far the numbers of its program and place, and over how many devices it
        is split.
      refused: The rows of programs for which no job could be made.
    """

    programs: Sequence[PolicyProgram]
    places: Sequence[Place]
    settings: CompileSettings
    progress: Progress | None
    admits: Callable[[int, Job], bool]
    budget_nbytes: int | None
    taken: list[tuple[tuple[int, int], int]] = field(default_factory=list)
    refused: dict[tuple[int, int], Compiled] = field(default_factory=dict)

    def __length_hint__(self) -> int:
        return len(self.programs) * len(self.places)

    def __iter__(self) -> Iterator[Job]:
        for i, program in enumerate(self.programs):
            modules: dict[str, LoweredModule | str] = {}
            for j, place in enumerate(self.places):
                module = _module(program, place, modules, self.progress)
                job = None
                if not isinstance(module, str):
                    try:
                        job = compile_job(program.policy, module, place, self.settings)
                        if self.budget_nbytes is not None:
                            job = replace(job, within_nbytes=self.budget_nbytes)
                        if program.is_dead or not program.asks_fit:
                            job = replace(job, within_nbytes=None)
                    except InputsError as e:
                        module = str(e)
                if job is None or isinstance(module, str):
                    self.refused[i, j] = Compiled(
                        on=place.text,
                        policy=program.policy,
                        error=module if isinstance(module, str) else None,
                        **estimated(program, place),
                    )
                    continue
                if self.admits(i, job):
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
    modules: dict[str, LoweredModule | str],
    progress: Progress | None,
) -> LoweredModule | str:
    """`made` holds what was lowered for each platform so far."""
    reason = why_unavailable(place)
    if reason is not None:
        return reason
    platform = place.platform
    if platform not in modules:
        if progress is not None:
            progress(f"lowering {program.policy} for {place.text}")
        try:
            modules[platform] = lowered(program.trace, platform)
        except JaxresidError as e:
            modules[platform] = " ".join(str(e).split())
        except Exception as e:
            modules[platform] = summary(e)
    return modules[platform]
