"""`jaxresid sweep`: report what XLA says of policies x batch sizes x places."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid._version import __version__
from jaxresid.advice.compare.compare import ComparisonTable, place_text
from jaxresid.advice.compare.policies import (
    NONE,
    WRITTEN,
    canonical_policy,
    is_reference,
    load_policy,
    unknown_policy_error,
)
from jaxresid.advice.compare.policy_targets import PolicyTarget, policy_target
from jaxresid.advice.compile.ahead_of_time import (
    CompileSettings,
    PolicyProgram,
    compile_job,
    compiled_row,
    places_of,
    settings,
)
from jaxresid.advice.sweep.results import Results
from jaxresid.base.errors import InputsError, JaxresidError, summary
from jaxresid.base.option_types import Mode
from jaxresid.base.progress import Progress, Stage
from jaxresid.inspector.call.question import Question, in_two_calls, size_name
from jaxresid.inspector.memory.compilers import place_info
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import Subject, gc_paused
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.inspector.variants.candidates import candidates
from jaxresid.inspector.variants.choices import Choice, Variant, Variants
from jaxresid.results import Sweep, SweepRow
from jaxresid.xla.job import Compilation, Job, LoweredModule
from jaxresid.xla.places import Place, why_unavailable
from jaxresid.xla.processes.cache import key
from jaxresid.xla.processes.pool import compile_jobs

POLICIES = (
    *(NONE, WRITTEN),
    *("dots_saveable", "dots_with_no_batch_dims_saveable", "nothing_saveable"),
)
Trace = Callable[[int | None], Subject]


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of a sweep: every combination of these is compiled.

    Attributes:
      on: The places.
      policies: `none`, `as-written`, names as a comparison prints them, or `module:policy`.
      batches: The batch sizes; empty means the inputs as they are.
      at: Where the policies go, as for `compare`.
      size_name: What the batch sizes are the sizes of: `batch`, `context`.
    """

    on: tuple[Place, ...]
    policies: tuple[str, ...] = POLICIES
    batches: tuple[int, ...] = ()
    at: str | None = None
    size_name: str = "batch"


@in_two_calls
def sweep(
    fun: Callable[..., Any],
    *,
    on: str | Place | Sequence[str | Place] | None = None,
    batches: Sequence[int] | None = None,
    policies: str | Sequence[str] = POLICIES,
    at: str | None = None,
    results: str | None = None,
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
    trips: int | None = None,
) -> Callable[..., Sweep]:
    """Return a function that compiles `fun` under each policy, at each batch size, for each place.

    `fun` is compiled with its gradients; a program that takes none is compiled as it is, without
    policies. `jaxresid.sweep(fun, on="cpu")(*args, **kwargs)` does so
    with these arguments. With `batches` the positional arguments differ at each size, and one
    function that makes them stands for them:
    `jaxresid.sweep(fun, on="cpu", batches=[8, 16])(make, **kwargs)`. `make(batch)` returns them as
    a tuple or list, or as `jaxresid.Inputs` where keyword arguments change as well; abstract arrays
    will do. `kwargs` are those of `fun` at every size.

    Args:
      fun: The function to compile, as for `jaxresid.compare`.
      on: The place or places to compile for, as for `jaxresid.compile`.
      batches: The batch sizes; None means the arguments as they are.
      policies: One or several of `none`, `as-written`, JAX's own by name, or `module:policy`.
      at: Where the policies go, as for `jaxresid.compare`.
      results: A file to which each result is appended as a line of JSON once it is known; what it
        already holds is not compiled again.
      flags: Options of the compiler, as for `jaxresid.compile`.
      timeout: Seconds after which a compile is given up.
      memory_limit: Bytes of memory above which a compile is given up.
      workers: How many compiles run at once.
      executor: What runs the compiles instead of processes on this machine.
      cache: Whether results are looked up in the cache and kept there.
      argnums: Positional arguments to differentiate, as for `jaxresid.inspect`.
      has_aux: Whether `fun` returns `(output, auxiliary data)`, as for `jaxresid.inspect`.
      mode: Whether `fun` is a loss or a program as it is, as for `jaxresid.inspect`.
      mesh: The mesh that the program is split over, as for `jaxresid.inspect`.
      trips: How often while loops run whose number of trips the program decides, for the FLOPs, as
        for `jaxresid.inspect`.

    Returns:
      A function of the arguments of `fun`, or of the function that makes them, that returns a
      `Sweep`.

    Raises:
      JaxresidError: Nothing could be traced, there is no such policy or place, or the file cannot
        be written. What cannot be compiled is an error in its row.
    """
    places = places_of(on)
    question = Question(
        fun,
        argnums=argnums,
        has_aux=has_aux,
        mode=mode,
        on=places[0],
        mesh=mesh,
        trips=trips,
    )
    if batches is not None and not len(batches):
        raise InputsError("a sweep needs at least one batch size")
    if not policies:
        raise InputsError("a sweep needs at least one policy; write none for no checkpoints")
    grid = Grid(
        places,
        (policies,) if isinstance(policies, str) else tuple(policies),
        tuple(dict.fromkeys(batches or ())),
        at,
    )
    chosen = settings(flags, timeout, memory_limit, workers, executor, cache=cache)

    def swept_over(*args: Any, **kwargs: Any) -> Sweep:
        if batches is not None and not (len(args) == 1 and callable(args[0])):
            raise InputsError(
                "with batches, the second call takes one function, batch size -> the positional"
                " arguments: jaxresid.sweep(fun, batches=...)(make, **kwargs)"
            )

        def trace(batch: int | None) -> Subject:
            if batch is None:
                return subject(question.of(args, kwargs))
            return subject(question.of_made(args[0](batch), kwargs))

        with contextlib.ExitStack() as stack:
            file = stack.enter_context(Results.open(results)) if results is not None else None
            asked = grid if batches is None else replace(grid, size_name=size_name(args[0]))
            return swept(trace, asked, chosen(), results=file)

    return swept_over


def swept(
    trace: Trace,
    grid: Grid,
    settings: CompileSettings,
    *,
    results: Results | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run a sweep and return its rows in the order of the grid, as `sweep` does.

    Args:
      trace: Traces the function at a batch size; None means with its inputs as they are.
      grid: What to combine.
      settings: How to compile.
      results: The results file to continue from and to append to; None means no file.
      progress: Called with a text that says what is being done.
    """
    run = _SweepRun(trace, grid, settings, results, progress or (lambda _: None))
    found = {(r.on, r.policy, r.batch): r for r in run.rows()}
    assert run.subject is not None
    assert run.policy_target is not None
    batches: tuple[int | None, ...] = grid.batches or (None,)
    ordered = [(on.text, p, b) for on in run.on for p in run.policies for b in batches]
    cache = settings.cache.warnings if settings.cache is not None else ()
    return Sweep(
        target=run.subject.target,
        jax=run.subject.jax,
        at=run.policy_target.at,
        places=tuple(place_text(each) for each in run.policy_target.places),
        policies=run.policies,
        batches=grid.batches,
        on=tuple(map(run.subject.info_of, run.on)),
        rows=tuple(found[each] for each in ordered if each in found),
        mesh=run.subject.mesh,
        size_name=grid.size_name,
        warnings=tuple(
            dict.fromkeys((*run.warnings, *(results.warnings if results else ()), *cache))
        ),
    )


@dataclass(frozen=True, slots=True)
class _PendingRow:
    """A compile that was handed over, and the row that its result completes."""

    row: SweepRow
    program: PolicyProgram
    place: Place
    devices: int


@dataclass(frozen=True, slots=True)
class _SizedJobs:
    """Jobs as they are made, with the most that there can be, for the progress."""

    jobs: Iterator[Job]
    size: int

    def __iter__(self) -> Iterator[Job]:
        return self.jobs

    def __length_hint__(self) -> int:
        return self.size


class _SweepRun:
    """One sweep, in which programs are traced and lowered one by one while others compile."""

    def __init__(
        self,
        trace: Trace,
        grid: Grid,
        settings: CompileSettings,
        results: Results | None,
        progress: Progress,
    ) -> None:
        self.on = grid.on
        self.policies = tuple(dict.fromkeys(map(canonical_policy, grid.policies)))
        self._loaded = {p: load_policy(p)[1] for p in self.policies if is_reference(p)}
        self.subject: Subject | None = None
        self.policy_target: PolicyTarget | None = None
        self.warnings: list[str] = []
        self._trace = trace
        self._grid = grid
        self._settings = settings
        self._results = results
        self._progress = progress
        self._pending: dict[int, _PendingRow] = {}
        self._ready: list[SweepRow] = []  # what needs no compile
        self._failures: list[tuple[int | None, JaxresidError]] = []
        self._total = len(self.on) * len(self.policies) * max(1, len(grid.batches))

    def rows(self) -> Iterator[SweepRow]:
        """Yield the results as they become known.

        Raises:
          JaxresidError: As `sweep`.
        """
        settings = self._settings
        done = compile_jobs(
            _SizedJobs(self._jobs(), self._total),
            executor=settings.executor,
            workers=settings.workers,
            cache=settings.cache,
            progress=self._progress,
        )
        # Left early, it ends the compiles that run.
        with contextlib.closing(done):
            for number, compilation in done:
                yield from self._ready_rows()
                yield self._record(self._complete(self._pending.pop(number), compilation))
        yield from self._ready_rows()

    def _ready_rows(self) -> Iterator[SweepRow]:
        while self._ready:
            yield self._record(self._ready.pop(0))

    def _record(self, row: SweepRow) -> SweepRow:
        if self._results is not None and not row.resumed:
            self._results.append(row)
        return row

    def _complete(self, pending: _PendingRow, compilation: Compilation) -> SweepRow:
        found = compiled_row(pending.program, pending.place, compilation, pending.devices)
        return replace(
            pending.row, compiled=found, error=found.error, transient=compilation.transient
        )

    def _jobs(self) -> Iterator[Job]:
        number = 0
        for batch in self._grid.batches or (None,):
            self._progress("tracing" if batch is None else Stage(f"tracing at batch {batch}"))
            try:
                traced = self._trace(batch)
                with gc_paused(), traced.tracing():
                    variants = traced.variants()
                    target = self._target(traced, variants)
                    table = ComparisonTable(traced, variants, target, self._progress)
            except JaxresidError as e:
                self._failures.append((batch, e))
                continue
            self.subject, self.policy_target = self.subject or traced, self.policy_target or target
            self.warnings += traced.warnings
            for pending, request in self._of_policies(table, target, batch):
                self._pending[number] = pending
                number += 1
                yield request
        if self.subject is None:
            raise self._failures[0][1]
        for batch, error in self._failures:
            for policy in self.policies:
                self._fail(self._rows(policy, batch, self._grid.at or ""), str(error))

    def _target(self, traced: Subject, variants: Variants) -> PolicyTarget:
        """Return where the policies go; a program without a gradient is compiled as it is.

        Raises:
          InputsError: There is no such place, or a policy is asked for that changes nothing.
        """
        if traced.target.has_gradient:
            return policy_target(variants.places(), self._grid.at, traced.residuals)
        if self._grid.at is not None or self._grid.policies not in (POLICIES, (WRITTEN,), (NONE,)):
            raise InputsError(
                f"{traced.name} takes no gradient, so no policy changes it: leave out the policies"
                " and their place"
            )
        self.policies = (WRITTEN,)
        return PolicyTarget("", ())

    def _of_policies(
        self, table: ComparisonTable, target: PolicyTarget, batch: int | None
    ) -> Iterator[tuple[_PendingRow, Job]]:
        named = {each.text: each.policy for each in candidates(table.names())}
        unknown = [p for p in self.policies if p not in (NONE, WRITTEN, *self._loaded, *named)]
        if unknown:
            raise unknown_policy_error(unknown[0], named)
        for policy in self.policies:
            with gc_paused(), table.subject.tracing():
                if policy == WRITTEN:
                    table.add(policy, {})
                elif policy == NONE:
                    table.add(policy, target.choices(None))
                else:
                    chosen = self._loaded.get(policy)
                    choice = Choice(named[policy] if chosen is None else chosen)
                    table.add(policy, target.choices(choice), chosen)
            static = table.rows[-1]
            variant = table.variants.pop(policy, None)
            rows = {
                on: replace(
                    each,
                    kept_nbytes=static.kept_nbytes,
                    host_nbytes=static.host_nbytes,
                    recompute_flops=static.recompute_flops,
                    recompute_fraction=static.recompute_fraction,
                )
                for on, each in self._rows(policy, batch, target.at).items()
            }
            if variant is None:
                self._fail(rows, static.error or "")
            else:
                yield from self._of_places(rows, variant)

    def _rows(self, policy: str, batch: int | None, at: str) -> dict[Place, SweepRow]:
        target = self.subject.name if self.subject else ""
        return {on: SweepRow(target, policy, batch, on.text, at) for on in self.on}

    def _of_places(
        self, rows: Mapping[Place, SweepRow], variant: Variant
    ) -> Iterator[tuple[_PendingRow, Job]]:
        modules: dict[str, LoweredModule | str] = {}
        program = PolicyProgram(next(iter(rows.values())).policy, variant.trace, variant.program)
        for place, row in rows.items():
            each = replace(row, peak_nbytes=program.estimate_nbytes(place))
            missing = why_unavailable(place) if self._settings.executor is None else None
            if missing is None and place.platform not in modules:
                modules[place.platform] = _lowered(variant, place.platform)
            module = missing or modules[place.platform]
            request = None
            if not isinstance(module, str):
                try:
                    request = compile_job(_label(each), module, place, self._settings)
                except InputsError as e:
                    module = str(e)
            if request is None or isinstance(module, str):
                self._fail({place: each}, str(module))
                continue
            profile = place_info(place).profile or ""
            keyed = replace(each, key=_digest(each, profile, _program_key(request)))
            if not self._is_known(keyed):
                yield _PendingRow(keyed, program, place, module.devices), request

    def _fail(self, rows: Mapping[Place, SweepRow], error: str) -> None:
        text = " ".join(word for word in error.split() if word != "^")  # points at nothing now
        for each in rows.values():
            failed = replace(each, key=_digest(each, error), error=text)
            if not self._is_known(failed):
                self._ready.append(failed)

    def _is_known(self, row: SweepRow) -> bool:
        """Return whether the file has what the compiler said of a row; if so, that is taken."""
        known = self._results.rows.get(row.key) if self._results is not None else None
        if known is None or known.transient:
            return False
        self._ready.append(replace(row, compiled=known.compiled, error=known.error, resumed=True))
        return True


def _lowered(variant: Variant, platform: str) -> LoweredModule | str:
    """Return the lowered program, or the reason why there is none."""
    try:
        return lowered(variant.trace, platform)
    except JaxresidError as e:
        return str(e)
    except Exception as e:
        return f"cannot be lowered for {platform}: {summary(e)}"


def _program_key(job: Job) -> str:
    """Return what identifies a compile, apart from the source lines that it comes from.

    Line numbers are left out since they move with every edit above them.
    """
    text = jax_compat.without_locations(job.module.code)
    return key(replace(job, module=replace(job.module, code=text.encode())))


def _label(row: SweepRow) -> str:
    return row.policy if row.batch is None else f"{row.policy} at batch {row.batch}"


def _digest(row: SweepRow, *further: str) -> str:
    identity = (__version__, row.target, row.policy, row.batch, row.on, row.at, *further)
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
