"""Run a sweep: trace and lower programs one by one while others compile."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from jaxresid import jax_compat
from jaxresid._version import __version__
from jaxresid.advice.compare.policies import (
    NONE,
    WRITTEN,
    canonical_policy,
    is_reference,
    load_policy,
    unknown_policy_error,
)
from jaxresid.advice.compare.policy_targets import PolicyTarget, policy_target
from jaxresid.advice.compare.table import ComparisonTable
from jaxresid.advice.compile.ahead_of_time import CompileSettings, compile_job
from jaxresid.advice.compile.rows import PolicyProgram, compiled_row
from jaxresid.advice.sweep.results import Results
from jaxresid.base.errors import InputsError, JaxresidError, summary
from jaxresid.base.progress import Progress, Stage
from jaxresid.inspector.memory.compilers import place_info
from jaxresid.inspector.subject.base import Subject, gc_paused
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.inspector.variants.candidates import candidates
from jaxresid.inspector.variants.choices import Choice, Variant, Variants
from jaxresid.results import SweepRow
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
      policies: `none`, `as-written`, names as a comparison prints them, or `module:policy`.
      batches: The batch sizes; empty means the inputs as they are.
      size_name: What the batch sizes are the sizes of: `batch`, `context`.
    """

    on: tuple[Place, ...]
    policies: tuple[str, ...] = POLICIES
    batches: tuple[int, ...] = ()
    at: str | None = None
    size_name: str = "batch"


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


class SweepRun:
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
        settings = self._settings
        compilations = compile_jobs(
            _SizedJobs(self._jobs(), self._total),
            executor=settings.executor,
            workers=settings.workers,
            cache=settings.cache,
            progress=self._progress,
        )
        # Left early, it ends the compiles that run.
        with contextlib.closing(compilations):
            for number, compilation in compilations:
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
        compiled = compiled_row(pending.program, pending.place, compilation, pending.devices)
        return replace(
            pending.row, compiled=compiled, error=compiled.error, transient=compilation.transient
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
        """A program without a gradient is compiled as it is."""
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
        named = {candidate.text: candidate.policy for candidate in candidates(table.names())}
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
                    candidate,
                    kept_nbytes=static.kept_nbytes,
                    host_nbytes=static.host_nbytes,
                    recompute_flops=static.recompute_flops,
                    recompute_fraction=static.recompute_fraction,
                )
                for on, candidate in self._rows(policy, batch, target.at).items()
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
            estimated = replace(row, peak_nbytes=program.estimate_nbytes(place))
            missing = why_unavailable(place) if self._settings.executor is None else None
            if missing is None and place.platform not in modules:
                modules[place.platform] = _lowered(variant, place.platform)
            module = missing or modules[place.platform]
            request = None
            if not isinstance(module, str):
                try:
                    size = "" if row.batch is None else f" at batch {row.batch}"
                    request = compile_job(row.policy + size, module, place, self._settings)
                except InputsError as e:
                    module = str(e)
            if request is None or isinstance(module, str):
                self._fail({place: estimated}, str(module))
                continue
            profile = place_info(place).profile or ""
            keyed = replace(estimated, key=_digest(estimated, profile, _program_key(request)))
            if not self._is_known(keyed):
                yield _PendingRow(keyed, program, place, module.devices), request

    def _fail(self, rows: Mapping[Place, SweepRow], error: str) -> None:
        text = " ".join(word for word in error.split() if word != "^")  # points at nothing now
        for row in rows.values():
            failed = replace(row, key=_digest(row, error), error=text)
            if not self._is_known(failed):
                self._ready.append(failed)

    def _is_known(self, row: SweepRow) -> bool:
        """Return whether the file has what the compiler said of a row; if so, that is taken."""
        earlier = self._results.rows.get(row.key) if self._results is not None else None
        if earlier is None or earlier.transient:
            return False
        self._ready.append(
            replace(row, compiled=earlier.compiled, error=earlier.error, resumed=True)
        )
        return True


def _lowered(variant: Variant, platform: str) -> LoweredModule | str:
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


def _digest(row: SweepRow, *further: str) -> str:
    identity = (__version__, row.target, row.policy, row.batch, row.on, row.at, *further)
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
