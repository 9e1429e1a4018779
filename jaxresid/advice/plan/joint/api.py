"""`jaxresid.plan`: plan how a function fits into memory, from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

from jaxresid import jax_compat
from jaxresid.advice.compile.ahead_of_time import CompileSettings
from jaxresid.advice.compile.limited import COMPILE_SECONDS
from jaxresid.advice.plan.confirmation import compiles_for
from jaxresid.advice.plan.joint.configurations import Configurations, Grid
from jaxresid.advice.plan.joint.joint import jointly_drafted
from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import Aim, Maximized, Minimized, Mode
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.inspector.call.question import Question, in_two_calls, size_name
from jaxresid.inspector.memory.compilers import has_estimate
from jaxresid.results import Plan
from jaxresid.xla.budgets import budget_nbytes
from jaxresid.xla.chosen import choose
from jaxresid.xla.places import Place
from jaxresid.xla.processes.cache import CompileCache, default_directory


@in_two_calls
def plan(
    fun: Callable[..., Any],
    *,
    budget: int | str | None = None,
    batches: Sequence[int] | None = None,
    microbatches: int | Sequence[int] = 1,
    minimize: Minimized | None = None,
    maximize: Maximized | None = None,
    offload: bool = False,
    compile: bool = False,
    compile_time: float = COMPILE_SECONDS,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    mode: Mode = "auto",
    on: str | Place | None = None,
    mesh: Any = None,
    meshes: Sequence[Any] | None = None,
    trips: int | None = None,
    lifetimes: bool = False,
) -> Callable[..., Plan]:
    """Return a function that plans how `fun` fits into memory with the least recomputation.

    `fun` is planned together with its gradients. Use it as
    `jaxresid.plan(fun, budget="12GiB")(*args, **kwargs)`. With `batches` the second call takes, in
    place of the positional arguments, a function that makes them for a batch size:
    `jaxresid.plan(loss, batches=[8, 16, 32], maximize="throughput")(make)`. With `meshes` that
    function takes a mesh, after the batch size if there are `batches` too, and splits the arguments
    over it.

    Args:
      fun: The function to plan for, as for `jaxresid.inspect`.
      budget: Bytes of peak memory, text such as `12GiB`, or a place such as `gpu:h100`, which
        stands for what a program can have of one device of it. None means that of the place `on`.
      batches: The batch sizes to choose from; None means the arguments as they are.
      microbatches: In how many microbatches the batch may go through, its gradients added up in a
        scan: a number, or several such as `range(1, 17)`, of which those are tried that divide the
        batch. More than 1 only where `fun` is a function of real scalars, or a training step whose
        losses are.
      minimize: `recompute` (the default: FLOPs that are run again), `time` (that of an item of the
        batch, estimated by a roofline; the default with `offload`) or `memory` (the peak).
      maximize: `throughput`: items of the batch per second, estimated as the time. `batch`: the
        largest of `batches` that fits, whatever the size is of: with `range(1024, 65537, 1024)` it
        takes a few traces. It is the default of a program that takes no gradient.
      offload: Whether values may also be moved to host memory. If so, the estimated time on
        that place's chip is minimised, transfers included, instead of the recomputed FLOPs.
      compile: Whether that place's compiler confirms the plan: it compiles at most six variants,
        and the plan's peak is what it says. For a CPU, where peaks are not estimated, it is always
        asked, about at most twenty.
      compile_time: Seconds that these compiles may take together.
      argnums: Positional arguments to differentiate, as for `jaxresid.inspect`.
      has_aux: Whether `fun` returns `(output, auxiliary data)`, as for `jaxresid.inspect`.
      mode: Whether `fun` is a loss or a program as it is, as for `jaxresid.inspect`.
      on: The place that the figures are for, as for `jaxresid.inspect`.
      mesh: The mesh that the program is split over, as for `jaxresid.inspect`.
      meshes: The meshes to choose from; None means `mesh`.
      trips: How often while loops run whose number of trips the program decides, as for
        `jaxresid.inspect`.
      lifetimes: Also report from when until when each value is live, in the code as it is and with
        the plan; not for a CPU.

    Returns:
      A function of the arguments of `fun`, or of the function that makes them, that returns a
      `Plan`.

    Raises:
      JaxresidError: As `jaxresid.inspect`, because the budget is not understood or not known, or
        because nothing can be compiled for that place here.
    """
    question = Question(
        fun, argnums=argnums, has_aux=has_aux, mode=mode, on=on, mesh=mesh, trips=trips
    )
    try:
        nbytes = budget_nbytes(budget) if isinstance(budget, str) else budget
    except InputsError as e:
        raise InputsError(f"budget: {e}") from None
    counts = (microbatches,) if isinstance(microbatches, int) else tuple(microbatches)
    if mesh is not None and meshes is not None:
        raise InputsError("mesh and meshes cannot be combined: give one of them")
    named = {} if meshes is None else _named(meshes)
    grid = Grid(
        () if batches is None else _sizes("batches", batches),
        _sizes("microbatches", counts),
        tuple(named),
    )
    aim = aim_of(minimize, maximize)

    def planned_for(*args: Any, **kwargs: Any) -> Plan:
        is_made = batches is not None or meshes is not None
        if is_made and not (len(args) == 1 and callable(args[0])):
            given = [w for w, g in (("batches", batches), ("meshes", meshes)) if g is not None]
            takes = ", ".join({"batches": "batch size", "meshes": "mesh"}[w] for w in given)
            raise InputsError(
                f"with {' and '.join(given)}, the second call takes one function, {takes} -> the"
                f" positional arguments: jaxresid.plan(fun, {given[0]}=...)(make, **kwargs)"
            )

        def ask(batch: int | None, mesh: str | None) -> Question:
            chosen = [x for x in (batch, None if mesh is None else named[mesh]) if x is not None]
            if not chosen:
                return question.of(args, kwargs)
            return question.of_made(args[0](*chosen), kwargs)

        place = choose(question.on)
        compiles = None
        if compile or not has_estimate(place):
            settings = CompileSettings(cache=CompileCache(default_directory()))
            compiles = compiles_for(place, settings, limit_s=compile_time)
        name = size_name(args[0]) if batches is not None else grid.name
        found = Configurations(replace(grid, name=name), ask)
        return jointly_drafted(
            found,
            place,
            nbytes,
            aim=aim,
            offload=offload,
            compiles=compiles,
            lifetimes=lifetimes,
        )[0]

    return planned_for


def aim_of(minimize: Any, maximize: Any) -> Aim | None:
    """Return what is minimised or maximised; None where neither is given.

    Raises:
      InputsError: both are given, or one is not known.
    """
    if minimize is not None and maximize is not None:
        raise InputsError("minimize and maximize cannot be combined: give one of them")
    if maximize is not None and maximize not in get_args(Maximized):
        raise InputsError(f"maximize must be throughput or batch, not {maximize!r}")
    if minimize is not None and minimize not in get_args(Minimized):
        known = get_args(Minimized)
        near = did_you_mean(minimize, known) if isinstance(minimize, str) else ""
        raise InputsError(f"minimize must be one of {', '.join(known)}, not {minimize!r}{near}")
    found: Aim | None = minimize or maximize
    return found


def _named(meshes: Sequence[Any]) -> dict[str, Any]:
    """Return meshes by their axes, as `--mesh` takes them.

    Raises:
      InputsError: there is none, one is no mesh, or two have the same axes.
    """
    found: dict[str, Any] = {}
    for mesh in meshes:
        if not hasattr(mesh, "axis_names"):
            raise InputsError(f"meshes must be meshes of JAX, not {mesh!r:.60}")
        axes = ",".join(f"{name}={size}" for name, size in jax_compat.axes_of(mesh).items())
        if axes in found:
            raise InputsError(f"meshes: two have the axes {axes}; give each once")
        found[axes] = mesh
    if not found:
        raise InputsError("meshes must be at least one mesh")
    return found


def _sizes(option: str, given: Sequence[int]) -> tuple[int, ...]:
    found = tuple(dict.fromkeys(given))
    if not found or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in found):
        raise InputsError(f"{option} must be whole numbers from 1 on, not {given!r:.60}")
    return found
