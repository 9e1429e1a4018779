"""Run many compiles: what is known comes from the cache, the rest goes to an executor."""

from __future__ import annotations

import math
import operator
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass, field, replace
from typing import Any

from jaxresid.base.interrupts import reraising_interrupts
from jaxresid.base.progress import Done, Progress, Stage
from jaxresid.xla import autotuning
from jaxresid.xla.absent_devices import with_reason
from jaxresid.xla.job import Compilation, Job
from jaxresid.xla.processes.cache import CompileCache, key
from jaxresid.xla.processes.child import one_line
from jaxresid.xla.processes.process import COMPILER, execute

# XLA compiles with several threads and takes some GiB for a big program, so that more at a time
# mostly compete; and a machine that people work on has seldom memory for more.
_MAX_WORKERS = 4
# Jobs that an executor of someone else's holds at a time: a bound on the memory of modules here.
_MAX_HANDED_OUT = 64
_TICK_S = 0.5
_ENDING_S = 10.0


def default_workers() -> int:
    """Return how many compiles run at once on this machine by default."""
    return min(_MAX_WORKERS, os.cpu_count() or 1)


def compile_jobs(
    jobs: Iterable[Job],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    cache: CompileCache | None = None,
    progress: Progress | None = None,
    compiler: str = COMPILER,
    until: float = math.inf,
) -> Generator[tuple[int, Compilation], None, None]:
    """Yield the result of each job, with the job's index, in the order in which they end.

    Equal jobs are compiled once. What would be said to fit, or fails, is compiled with cuBLAS's
    matmuls too, where that is a question (`autotuning.job_left`); its result comes when both are
    there. A job whose worker is lost is a Compilation with an error, never an exception; if the
    executor itself breaks, the others go on here.

    Close the iterator (`contextlib.closing`) where it may be left early: that ends every compile on
    this machine before it returns. What another machine or another process's executor has begun
    goes on there until its time limit, and its result is forgotten.

    Args:
      jobs: taken as there is room for them, so they may be made while others compile; if they can
        tell how many they are (`len`, or `__length_hint__`), so does the progress.
      executor: runs `process.execute`; None: threads here that guard a process each.
      workers: how many at once; None: `default_workers()`, or 64 in someone else's executor.
      cache: where results are looked up and kept. Of an executor that may be on other machines only
        what does not depend on the machine is kept: what was compiled for a TPU that is not there.
      progress: is told what is compiled at the moment and since when, and of each compile that
        ends, which those are not whose result the cache had.
      compiler: as for `execute`.
      until: when to end what still compiles, and to begin no more, by `time.monotonic`. A program
        that was compiled by then, but not with cuBLAS's matmuls, has that as `cublas_error`.
    """
    run = _Executions(executor, workers, compiler)
    total = operator.length_hint(jobs)
    todo = _ToDo(jobs)
    known: dict[str, Compilation] = {}
    n_done = 0
    try:
        with reraising_interrupts():
            while (todo or run.pending) and time.monotonic() < until:
                if todo and run.has_room():
                    asked = todo.next()
                    if asked is None:
                        continue
                    job = asked.job
                    name = key(job)
                    keeps = cache if run.is_here or not job.place.is_here else None
                    if name in run.pending:
                        run.pending[name].asked.append(asked)
                        continue
                    if name not in known and keeps is not None and (found := keeps.get(job)):
                        known[name] = found
                    if name in known:
                        for index, answer in todo.answers(asked, known[name], keeps):
                            n_done += 1
                            yield index, answer
                        continue
                    if progress is not None:
                        progress(_begun_text(total))
                    run.submit(name, _PendingJob(job, [asked], keeps))
                for name, pending_job, found in run.completed(
                    0 if todo and run.has_room() else _TICK_S
                ):
                    if pending_job.cache is not None:
                        pending_job.cache.put(pending_job.job, found)
                    known[name] = found
                    answers = [
                        answer
                        for asked in pending_job.asked
                        for answer in todo.answers(asked, found, pending_job.cache)
                    ]
                    n_done += len(answers)
                    if progress is not None:
                        text = _done_text(pending_job, found, n_done, total)
                        is_tried_again = found.error is not None and not answers
                        progress(
                            Done(f"{text}; trying cuBLAS's matmuls") if is_tried_again else text
                        )
                    yield from answers
                if progress is not None and run.pending:
                    progress(_progress_text(run.pending.values(), n_done, total))
        late = Compilation(error="there was no time for it", transient=True)
        for asked in (*todo.again, *(a for it in run.pending.values() for a in it.asked)):
            if asked.first is not None:
                yield asked.index, _answer(asked, late)
    finally:
        run.close()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A job to do.

    Attributes:
      index: the index of the job that it is for.
      job: the job.
      first: that job and its result where this is the same with cuBLAS's matmuls; None where this
        is that job.
    """

    index: int
    job: Job
    first: tuple[Job, Compilation] | None = None


class _ToDo:
    """Jobs to do: those that are given, and those that follow from results.

    Attributes:
      again: the jobs that follow from results.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.again: deque[_Asked] = deque()
        self._jobs = iter(enumerate(jobs))
        self._has_more = True

    def __bool__(self) -> bool:
        return self._has_more or bool(self.again)

    def next(self) -> _Asked | None:
        """Return the next job; None where there is none after all."""
        if self.again:
            return self.again.popleft()
        index, job = next(self._jobs, (-1, None))
        if job is None:
            self._has_more = False
            return None
        return _Asked(index, job)

    def answers(
        self, asked: _Asked, found: Compilation, cache: CompileCache | None
    ) -> Iterator[tuple[int, Compilation]]:
        """Yield the result of a job with its index, or nothing where more has to be compiled.

        Args:
          asked: the job.
          found: its result.
          cache: where an answer is kept in the place of an error, which is not.
        """
        job = None if asked.first is not None else autotuning.job_left(asked.job, found)
        if job is not None:
            self.again.append(_Asked(asked.index, job, (asked.job, found)))
            return
        answer = _answer(asked, found)
        if asked.first is not None and answer.triton_error is not None and cache is not None:
            cache.put(asked.first[0], answer)
        yield asked.index, answer


def _answer(asked: _Asked, found: Compilation) -> Compilation:
    """Return what is said of a job, given its result, or that with cuBLAS's matmuls."""
    answer = found if asked.first is None else autotuning.joined(asked.first[1], found)
    if answer.error is not None and asked.job.place.target_config:
        return replace(answer, error=with_reason(answer.error))
    return answer


@dataclass(slots=True)
class _PendingJob:
    """A job that is with the executor.

    Attributes:
      job: the job.
      asked: what it is for, and what equal jobs are for.
      cache: where its result is kept.
      future: its future; None before it was given to the executor.
      submitted_at: when it was given to the executor.
      began_at: when it began, as far as the executor tells; Dask's tells when it is over.
      note: a note to add to its result.
    """

    job: Job
    asked: list[_Asked]
    cache: CompileCache | None
    future: Future[Compilation] | None = None
    submitted_at: float = field(default_factory=time.monotonic)
    began_at: float | None = None
    note: str = ""


class _Executions:
    """The jobs that are with an executor, by key, and how they come back."""

    def __init__(self, executor: Executor | None, workers: int | None, compiler: str) -> None:
        self.pending: dict[str, _PendingJob] = {}
        self._compiler = compiler
        self._stop = threading.Event()
        self._workers = workers
        self._use(executor)

    def _use(self, executor: Executor | None) -> None:
        self.is_here = executor is None or isinstance(
            executor, ThreadPoolExecutor | ProcessPoolExecutor
        )
        # An event does not get into another process.
        self._stops = executor is None or isinstance(executor, ThreadPoolExecutor)
        workers = self._workers or (default_workers() if executor is None else _MAX_HANDED_OUT)
        self._executor = executor or _GuardThreads(workers)
        # One that waits, so that nobody is idle while the next is made.
        self._max_pending = workers + 1 if executor is None else workers

    def has_room(self) -> bool:
        return len(self.pending) < self._max_pending

    def submit(self, name: str, pending_job: _PendingJob) -> None:
        stop = {"stop": self._stop} if self._stops else {}
        try:
            pending_job.future = self._executor.submit(
                execute, pending_job.job, compiler=self._compiler, **stop
            )
        except Exception as e:
            # RuntimeError: it was shut down.
            is_broken = isinstance(e, BrokenExecutor | RuntimeError)
            if is_broken and not isinstance(self._executor, _GuardThreads):
                self._fall_back_here()
                pending_job.note = pending_job.note or _on_this_machine(e)
                self.submit(name, pending_job)
                return
            pending_job.future = Future()
            pending_job.future.set_exception(e)
        self.pending[name] = pending_job

    def completed(self, timeout_s: float) -> Iterator[tuple[str, _PendingJob, Compilation]]:
        """Yield the jobs that have ended, after waiting up to a time for the first of them."""
        futures = [
            pending_job.future for pending_job in self.pending.values() if pending_job.future
        ]
        wait(futures, timeout_s, FIRST_COMPLETED)
        now = time.monotonic()
        for name, pending_job in tuple(self.pending.items()):
            future = pending_job.future
            assert future is not None
            if pending_job.began_at is None and future.running():
                pending_job.began_at = now
            if not future.done():
                continue
            del self.pending[name]
            try:
                found = _result(future)
            except BrokenExecutor as e:
                self._fall_back_here()
                pending_job.began_at, pending_job.note = None, _on_this_machine(e)
                self.submit(name, pending_job)
                continue
            if pending_job.note:
                found = replace(found, notes=(*found.notes, pending_job.note))
            yield name, pending_job, found

    def close(self) -> None:
        """End what can be ended from here, and wait until it has."""
        self._stop.set()
        futures = [flight.future for flight in self.pending.values() if flight.future]
        for future in futures:
            future.cancel()
        if self._stops:
            wait(futures, _ENDING_S)

    def _fall_back_here(self) -> None:
        if not isinstance(self._executor, _GuardThreads):
            self._use(None)


class _GuardThreads(Executor):
    """An executor with a thread for each job, of which a fixed number work at a time.

    An exit of the interpreter does not wait for them, as it does for those of ThreadPoolExecutor:
    their children end with it.
    """

    def __init__(self, workers: int) -> None:
        self._turns = threading.Semaphore(workers)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            with self._turns:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as e:
                    future.set_exception(e)

        threading.Thread(target=work, daemon=True).start()
        return future


def _result(future: Future[Compilation]) -> Compilation:
    """Return the result of a future; where the worker was lost, a transient error.

    Raises:
      BrokenExecutor: the executor broke.
    """
    try:
        error = future.exception()
    except CancelledError:
        return Compilation(error="cancelled by the executor", transient=True)
    if isinstance(error, BrokenExecutor):
        raise error
    if error is not None:
        return Compilation(error=f"lost by the executor: {one_line(error)}", transient=True)
    return future.result()


def _on_this_machine(error: Exception) -> str:
    return f"compiled on this machine, as the executor failed ({one_line(error)})"


def _begun_text(total: int) -> Stage:
    """Return that programs are compiled from now on: `compiling up to 8 programs`."""
    return Stage(f"compiling up to {total} programs" if total > 1 else "compiling")


def _progress_text(pending: Iterable[_PendingJob], n_done: int, total: int) -> str:
    """Return the progress: `compiling dots for tpu:v5e:2x4 and 1 more, 2 of 8 done, 12 s`."""
    pending = tuple(pending)
    running = [flight for flight in pending if flight.began_at is not None]
    first = min(running or pending, key=lambda flight: flight.began_at or flight.submitted_at)
    seconds = time.monotonic() - (first.began_at or first.submitted_at)
    if running:
        what = f"compiling {_named(first.job)}"
        what += f" and {len(running) - 1} more" if len(running) > 1 else ""
    else:
        what = f"{len(pending)} to compile"
    return f"{what}, {_count(n_done, total)}, {seconds:.0f} s"


def _done_text(ended: _PendingJob, found: Compilation, n_done: int, total: int) -> Done:
    """Return that a compile has ended: `compiled dots for tpu:v5e:2x4, 3 of 8 done, 12 s`."""
    verb = "compiled" if found.error is None else "could not compile"
    seconds = time.monotonic() - (ended.began_at or ended.submitted_at)
    return Done(f"{verb} {_named(ended.job)}, {_count(n_done, total)}, {seconds:.0f} s")


def _named(job: Job) -> str:
    return job.label or job.place.text


def _count(n_done: int, total: int) -> str:
    return f"{n_done} of {total} done" if total else f"{n_done} done"
