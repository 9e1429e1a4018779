"""`jaxresid sweep`: report what XLA says of policies x batch sizes x places."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from jaxresid.advice.compare.table import place_text
from jaxresid.advice.compile.ahead_of_time import CompileSettings, places_of, settings
from jaxresid.advice.sweep.results import Results
from jaxresid.advice.sweep.run import POLICIES, Grid, SweepRun, Trace
from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import Mode
from jaxresid.base.progress import Progress
from jaxresid.inspector.call.question import Question, in_two_calls, size_name
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import Subject
from jaxresid.results import Sweep
from jaxresid.xla.places import Place


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
      argnums, has_aux, mode, mesh, trips: As for `jaxresid.inspect`.

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
    """Run a sweep and return its rows in the order of the grid, as `sweep` does."""
    run = SweepRun(trace, grid, settings, results, progress or (lambda _: None))
    by_cell = {(r.on, r.policy, r.batch): r for r in run.rows()}
    assert run.subject is not None
    assert run.policy_target is not None
    batches: tuple[int | None, ...] = grid.batches or (None,)
    ordered = [(on.text, p, b) for on in run.on for p in run.policies for b in batches]
    cache = settings.cache.warnings if settings.cache is not None else ()
    return Sweep(
        target=run.subject.target,
        jax=run.subject.jax,
        at=run.policy_target.at,
        places=tuple(place_text(place) for place in run.policy_target.places),
        policies=run.policies,
        batches=grid.batches,
        on=tuple(map(run.subject.info_of, run.on)),
        rows=tuple(by_cell[place] for place in ordered if place in by_cell),
        mesh=run.subject.mesh,
        size_name=grid.size_name,
        warnings=tuple(
            dict.fromkeys((*run.warnings, *(results.warnings if results else ()), *cache))
        ),
    )
