"""Changes besides checkpoints that lower a plan's peak, each with its effect on the program.

Of a change of shapes or dtypes the function is traced again, with the plan's checkpoints. A split
over devices leaves the jaxpr as it is: the program is built of it again. Donation leaves the
kernels as they are. What cannot be traced with a change is not told of.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.advice.compile.ahead_of_time import PolicyProgram
from jaxresid.advice.compile.limited import LimitedCompiles
from jaxresid.advice.plan.floor.accumulation import accumulated
from jaxresid.advice.plan.floor.host_state import HostState, with_host_state
from jaxresid.advice.plan.floor.offloads import best_offload
from jaxresid.advice.plan.floor.parts import argument_name
from jaxresid.advice.plan.floor.solvers import change_text
from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.advice.plan.search.menus import Menus
from jaxresid.advice.plan.search.search import choices
from jaxresid.advice.plan.search.solver_counts import most_that_fit
from jaxresid.base.crashes import Crash
from jaxresid.base.errors import RetraceError
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.call.leaves import is_array, is_inexact, like
from jaxresid.inspector.conclusions import rewrite_proposals
from jaxresid.inspector.few_layers import lowered_whole
from jaxresid.inspector.findings.collect import Search, collected
from jaxresid.inspector.findings.proposals import ChangeEffect
from jaxresid.inspector.jaxpr.bindings import strip_trace_context
from jaxresid.inspector.memory.lowered import Lowered, lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.donation import missing_donation
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.program.step_roles import (
    BATCH,
    FROZEN,
    OPTIMIZER_STATE,
    PARAMETERS,
    next_values,
)
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.choices import Choices, Variant, Variants, same_places
from jaxresid.inspector.variants.solver_checkpoints import biggest_loop, keeping
from jaxresid.inspector.variants.solver_variants import SolverVariants
from jaxresid.results import Answer, Relief, answer
from jaxresid.results.plan.floor import ReliefKind

# Of the plan's peak; what saves less is not told of.
_WORTH_SAYING = 0.01
# Of what a part of the update fetches; what saves as much saves something by XLA, too.
_NEARLY_ALL = 0.99
_SOLVER = "fewer checkpoints in a solver's loop"
_HOST_STATE = "the optimizer's state in host memory"
# Devices to split over where the place says of none: those of a host.
_DEVICES = 8
_AXIS = "data"
_RANKS: dict[Answer, int] = {"fits": 0, "too close": 1, "does not fit": 2}


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments that hold a batch.

    Attributes:
      leaves: the numbers of the leaves.
      size: their leading dimension.
    """

    leaves: tuple[int, ...]
    size: int


class Reliefs:
    """The changes that lower the peak of one plan.

    Args:
      subject: The traced function.
      variants: The variants of it.
      shown: The plan's variant.
      budget_nbytes: The budget.
      menus: The menus of its places, for what offloading does; None: nothing is offloaded besides
        what the plan offloads.
      compiles: What the compiler is asked with about the optimizer's state in host memory; None: it
        is not asked.
      needed_nbytes: What the plan needs by that compiler, in bytes; None: not known.
      written: The code as it is written, for the changes that findings propose in it; None: they
        are left out.
      plain_flops: The FLOPs without any checkpoint.

    Attributes:
      left_out: As of `Floor`, once `found` has been called.
      crashes: The changes that an error of our own left out, once `found` has been called.
    """

    def __init__(
        self,
        subject: Subject,
        variants: Variants,
        shown: TracedVariant,
        budget_nbytes: int,
        menus: Menus | None = None,
        compiles: LimitedCompiles | None = None,
        needed_nbytes: int | None = None,
        written: Variant | None = None,
        plain_flops: int = 0,
    ) -> None:
        self.left_out: tuple[str, ...] = ()
        self.crashes: list[Crash] = []
        self._written, self._plain_flops = written, plain_flops
        self._menus, self._shown = menus, shown
        self._compiles, self._needed = compiles, needed_nbytes
        self._every_variant = variants
        self._subject, self._variants, self._budget = subject, variants, budget_nbytes
        self._trace, self._peak = shown.variant.trace, shown.variant.peak_nbytes
        self._loss, self._step = subject.holes.alone, subject.holes.as_step(self._trace)
        self._few = shown.variant.few
        is_written = not shown.changes
        self._choices: Choices = {} if is_written else choices(shown.combination)
        self._tracing: Callable[[], contextlib.AbstractContextManager[None]]
        self._tracing = contextlib.nullcontext
        self._chooses_solver = isinstance(variants, SolverVariants)
        if isinstance(variants, SolverVariants):
            # What is traced with a change has the plan's number of checkpoints, too.
            count, self._choices = variants.divided(self._choices)
            self._tracing = functools.partial(variants.keeping, count)
            self._variants = variants.plain
        self._call = subject.trace.arguments
        self._roles = _roles(subject)
        self._batch = batch_of(subject)

    def found(self, *, is_short: bool) -> tuple[Relief, ...]:
        """Return what lowers the peak, the cheapest first; see `Floor.reliefs`.

        Args:
          is_short: Whether memory is short. Where it is not, only donation is looked for, which
            costs nothing, neither here nor where the program runs.
        """
        each: list[Search[Relief]] = [("donation", self._donated)]
        # How many microbatches, and on what mesh, is chosen with the checkpoints otherwise.
        is_open = self._subject.passes == 1
        if is_short:
            each.append(("what other code saves", self._rewritten))
            each.append((_SOLVER, self._with_fewer_checkpoints))
            if is_open:
                each.append(("microbatches", self._in_microbatches))
            each.append(("what offloading saves", self._offloaded))
            if self._subject.target.has_gradient:
                each.append((_HOST_STATE, self._with_host_state))
            each.append(("what bfloat16 saves", self._narrowed))
            if is_open:
                each.append(("what more devices save", self._split))
        return tuple(collected(each, self.crashes))

    # -- each change -------------------------------------------------------------------------

    def _donated(self) -> Iterator[Relief]:
        """Yield the donation of the arguments that a step returns updated."""
        lowered = self._shown.variant.lowered
        made = None if self._step is None else missing_donation(self._step, lowered.program)
        if made is None:
            return
        positions = [a.position for a in made.arguments]
        how = ""
        if None not in positions:
            listed = ", ".join(map(str, positions)) + "," * (len(positions) == 1)
            how = f": donate_argnums=({listed})"
        names = _listed([a.name for a in made.arguments])
        change = f"donate {names}, returned updated{how}"
        yield from self._told("donation", change, replace(lowered, program=made.program))

    def _rewritten(self) -> Iterator[Relief]:
        """Yield what findings propose for the code as it is written, in place of the plan.

        It is told of where the peak is lower than the plan's, or where it is the better choice:
        it fits and the plan may not, or it costs less.
        """
        if self._written is None or self._subject.passes > 1:
            return
        mine = self._share(self._shown.variant.cost.flops)
        around = self._subject.interval(self._peak, self._shown.variant.lowered.program)
        planned = _RANKS[answer(around, self._budget)], mine
        for proposal in rewrite_proposals(self._subject, self.crashes):
            effect = ChangeEffect.of(proposal)
            if effect is None:
                continue
            nbytes, flops = effect.after_nbytes, self._written.cost.flops
            share = self._share(int(flops * (1 + effect.flops_fraction)))
            around = self._subject.interval(nbytes, self._subject.program)
            fits, saved = answer(around, self._budget), self._peak - nbytes
            if (_RANKS[fits], share) >= planned and saved <= _WORTH_SAYING * self._peak:
                continue
            change = f"{proposal.change_text}, {effect.cost_text}"
            if self._shown.changes:
                change = f"{proposal.change_text} in place of this plan, recompute {share:.1%}"
            yield Relief("rewrite", change, nbytes, saved, fits)

    def _share(self, flops: int) -> float:
        """Return what is recomputed where a program has so many FLOPs, as a share of the plain."""
        return (flops - self._plain_flops) / self._plain_flops if self._plain_flops else 0.0

    def _with_fewer_checkpoints(self) -> Iterator[Relief]:
        """Yield fewer checkpoints in the solver's loop that keeps most."""
        loop = biggest_loop(self._trace)
        if self._chooses_solver:
            return
        if loop is None or loop.checkpoints < 2 or loop.nbytes <= _WORTH_SAYING * self._peak:
            return
        made: dict[int, tuple[Traced, Program]] = {}

        def peak_of(count: int) -> int:
            with keeping(loop.checkpoints, count):
                traced, program_of = self._traced_with(self._call.leaves)
            for top in traced.tops:
                strip_trace_context(top.jaxpr)
            made[count] = traced, program_of(traced)
            return peak_nbytes(self._lowered(made[count][1]))

        with _where_traced(_SOLVER):
            chosen = most_that_fit(loop, self._peak, self._budget, peak_of)
            traced, program = made[chosen.count]
            change = change_text(loop, chosen.count)
            row = None
            if self._compiles is not None and self._needed is not None:
                row = self._compiles.besides(PolicyProgram(_SOLVER, traced, program), self._budget)
            if row is None or row.needed_nbytes is None or self._needed is None:
                yield from self._told("solver", change, program)
            elif self._needed - row.needed_nbytes > _WORTH_SAYING * self._needed:
                nbytes = row.needed_nbytes
                answered: Answer = "fits" if nbytes <= self._budget else "does not fit"
                saved = self._needed - nbytes
                yield Relief("solver", change, nbytes, saved, answered, confirmed=True)

    def _in_microbatches(self) -> Iterator[Relief]:
        """Yield the batch in two microbatches; of a step, half the batch."""
        batch = self._batch
        if batch is None or batch.size % 2:
            return
        half = batch.size // 2
        leaves = list(self._call.leaves)
        for i in batch.leaves:
            leaves[i] = like(leaves[i], (half, *leaves[i].shape[1:]), leaves[i].dtype)
        names = _names([self._call.paths[i] for i in batch.leaves])
        with _where_traced("half the batch"):
            made, program_of = self._traced_with(leaves)
            if self._loss is not None:
                every = accumulated(self._loss, made, self._call, batch.leaves)
                program = step_program(every)
                change = (
                    f"two microbatches of {_listed(names)}, {half} each, gradients added up in a"
                    " scan"
                )
                yield from self._told("microbatches", change, program)
            else:
                change = f"half the batch: {half} in place of {batch.size} in {_listed(names)}"
                yield from self._told("batch", change, program_of(made))

    def _offloaded(self) -> Iterator[Relief]:
        """Yield the move of one value of a checkpointed body to host memory, and back."""
        if self._menus is None:
            return
        found = best_offload(self._every_variant, self._menus, self._shown)
        if found is not None:
            yield from self._told("offload", found.text, found.variant.lowered)

    def _with_host_state(self) -> Iterator[Relief]:
        """Yield the optimizer's state in host memory; where a compiler is asked, as that has it."""
        if self._step is None:
            return
        made: HostState | str = "JAX cannot trace it"
        with _where_traced(_HOST_STATE):
            made = with_host_state(self._step)
        if isinstance(made, str):
            self._leave_out(made)
            return
        program = step_program(made.step, made.roles)
        lowered = self._lowered(program)
        saved = self._peak - peak_nbytes(lowered)
        moved = sum(v.nbytes for v in lowered.program.block.inputs if v.memory == "host")
        # XLA may have what is fetched twice: its new value beside it.
        is_open = abs(saved) < _NEARLY_ALL * made.part * moved
        if self._compiles is not None and (is_open or saved > 0):
            yield from self._confirmed(_moved_text(made), made.step, program, self._compiles)
        elif is_open:
            on = self._subject.place.text
            self._leave_out(f"the estimate is too close to tell; with --compile {on} is asked")
        elif saved < 0:
            self._leave_out("by the estimate that takes more, as all of it is fetched at once")
        else:
            for relief in self._told("host-state", _moved_text(made), lowered):
                # The range of estimates was made without such programs.
                yield replace(relief, answer="too close")

    def _confirmed(
        self, change: str, traced: Traced, program: Program, compiles: LimitedCompiles
    ) -> Iterator[Relief]:
        """Yield the state in host memory by the compiler's figures if these make it worth saying.

        Args:
          change: What to do.
          traced: The step with its state there.
          program: The program of it.
          compiles: What asks the compiler.
        """
        on, row = compiles.place.text, None
        if self._needed is not None:
            row = compiles.besides(PolicyProgram(_HOST_STATE, traced, program), self._budget)
        if self._needed is None or row is None or row.needed_nbytes is None:
            self._leave_out(f"{on} has no figures of it")
            return
        nbytes, saved = row.needed_nbytes, self._needed - row.needed_nbytes
        if saved <= _WORTH_SAYING * self._needed:
            self._leave_out(f"{on} needs {format_bytes(nbytes)} with it, hardly less or more")
            return
        answered: Answer = "fits" if nbytes <= self._budget else "does not fit"
        yield Relief("host-state", change, nbytes, saved, answered, confirmed=True)

    def _leave_out(self, reason: str) -> None:
        self.left_out = (*self.left_out, f"{_HOST_STATE}: {reason}")

    def _narrowed(self) -> Iterator[Relief]:
        """Yield the parameters or the batch in bfloat16 in place of float32.

        It is the bigger of the two that can be traced so.
        """
        batch = set(self._batch.leaves) if self._batch else set()
        parameters = {
            i
            for i, role in self._roles.items()
            if i not in batch and role in (PARAMETERS, FROZEN, "differentiated")
        }
        sizes = []
        for chosen, times in ((parameters, 1), (batch, self._subject.passes)):
            wide = [i for i in sorted(chosen) if self._is_wide(i)]
            sizes.append((times * sum(_nbytes(self._call.leaves[i]) for i in wide), wide))
        for nbytes, wide in sorted(sizes, reverse=True):
            if nbytes <= _WORTH_SAYING * self._peak:
                return
            leaves = list(self._call.leaves)
            for i in wide:
                leaves[i] = like(leaves[i], leaves[i].shape, "bfloat16")
            names = _names([self._call.paths[i] for i in wide])
            with _where_traced("bfloat16"):
                made, program_of = self._traced_with(leaves)
                if self._updates_as_before(made):
                    change = f"{_listed(names)} in bfloat16 in place of float32"
                    yield from self._told("dtype", change, program_of(made))
                    return

    def _is_wide(self, leaf: int) -> bool:
        return str(getattr(self._call.leaves[leaf], "dtype", "")) == "float32"

    def _split(self) -> Iterator[Relief]:
        """Yield the batch, and all that is updated with it, split over devices."""
        mesh = self._call.mesh
        if mesh is None:
            devices = self._subject.place.devices or 1
            axis, size = _AXIS, devices if devices > 1 else _DEVICES
            with _where_traced("a mesh"):
                mesh = jax_compat.new_abstract_mesh({axis: size})
        elif jax_compat.is_explicit(mesh):
            return  # the types would be others
        else:
            axes = jax_compat.axes_of(mesh)
            axis = max(axes, key=lambda name: axes[name])
            size = axes[axis]
        if mesh is None or size < 2:
            return
        batch = set(self._batch.leaves) if self._batch else set()
        weights = {
            i
            for i, role in self._roles.items()
            if i not in batch
            and role in (PARAMETERS, FROZEN, OPTIMIZER_STATE, "state", "differentiated")
        }
        for chosen, way in ((batch, "data parallel"), (weights | batch, "FSDP")):
            with _where_traced(way):
                split = _split_leaves(self._call, mesh, axis, size, chosen, batch)
                if not split or (way == "FSDP" and not weights & split.keys()):
                    continue
                leaves = [split.get(i, leaf) for i, leaf in enumerate(self._call.leaves)]
                call = replace(self._call, leaves=tuple(leaves), mesh=mesh)
                names = _listed(_names([self._call.paths[i] for i in split]))
                is_known = chosen is batch or any(
                    self._roles[i] != "state" for i in split.keys() & weights
                )
                change = f"{names} split over {size} devices" + f" ({way})" * is_known
                yield from self._told("sharding", change, self._lowered_as(call))

    # -- what they share ---------------------------------------------------------------------

    def _lowered(self, program: Program) -> Lowered:
        return lower(program, self._subject.profile)

    def _lowered_as(self, call: Arguments) -> Lowered:
        """Return the plan's program with arguments that are split otherwise."""
        few = None if self._few is None else self._few.split(call)
        whole = None if few is None else lowered_whole(few, self._subject.profile)
        if whole is not None:
            return whole
        return self._lowered(self._subject.holes.program(replace(self._trace, arguments=call)))

    def _told(self, kind: ReliefKind, change: str, program: Program | Lowered) -> Iterator[Relief]:
        """Yield the relief if it is worth saying."""
        lowered = program if isinstance(program, Lowered) else self._lowered(program)
        nbytes = peak_nbytes(lowered)
        saved = self._peak - nbytes
        if saved > _WORTH_SAYING * self._peak:
            around = self._subject.interval(nbytes, lowered.program)
            yield Relief(kind, change, nbytes, saved, answer(around, self._budget))

    def _updates_as_before(self, made: Traced) -> bool:
        """Return whether a step still returns what it updates in the dtypes that it is given."""
        step = self._subject.holes.as_step(made)
        if step is None or self._step is None:
            return True
        return next_values(step).keys() == next_values(self._step).keys()

    def _traced_with(self, leaves: Sequence[Any]) -> tuple[Traced, Callable[[Traced], Program]]:
        """Return the function traced with other leaves, and what makes the program of a trace.

        It has the plan's checkpoints.

        Raises:
          Exception: Whatever the function raises.
        """
        with self._tracing():
            return self._traced_so(leaves)

    def _traced_so(self, leaves: Sequence[Any]) -> tuple[Traced, Callable[[Traced], Program]]:
        variants = self._subject.traced_with(leaves).variants()
        same = same_places(self._choices, self._variants, variants)
        made = variants.trace({same[place]: made for place, made in self._choices.items()})
        return made, variants.program


def batch_of(subject: Subject, rows: int | None = None) -> Batch | None:
    """Return the arguments that hold a batch; None where that is not known.

    In a step they are what is read and not changed. In a function they are what is not
    differentiated; where all floats are, what is not in the first argument, by which JAX
    differentiates. They share their leading dimension.

    Args:
      subject: The traced function.
      rows: That dimension, where it is known.
    """
    call = subject.trace.arguments
    roles = _roles(subject)
    if subject.step is not None:
        chosen = [i for i, role in roles.items() if role == BATCH]
    else:
        others = [i for i, role in roles.items() if role == "argument"]
        if not any(is_inexact(call.leaves[i]) for i in others) and len(call.names) > 1:
            first = call.names[0]
            others += [
                i
                for i, role in roles.items()
                if role == "differentiated" and argument_name(call.paths[i]) != first
            ]
        chosen = sorted(others)
    arrays = [i for i in chosen if _has_rows(call.leaves[i], 2 if rows is None else rows)]
    if not arrays:
        return None
    size = rows or call.leaves[max(arrays, key=lambda i: _nbytes(call.leaves[i]))].shape[0]
    leaves = tuple(i for i in arrays if call.leaves[i].shape[0] == size)
    return Batch(leaves, size) if leaves else None


def _roles(subject: Subject) -> Mapping[int, str]:
    """Return what each traced leaf is, by its number: in a function `differentiated` or not."""
    call = subject.trace.arguments
    if subject.step is not None:
        kinds = {r.path: r.kind for r in subject.program.inputs if r.path is not None}
        return {i: kinds.get(call.paths[i], "argument") for i in call.dynamic}
    wanted = set(call.having("differentiated"))
    return {i: "differentiated" if i in wanted else "argument" for i in call.dynamic}


def _has_rows(leaf: Any, least: int) -> bool:
    """Return whether a leaf is an array of so many rows; a PRNG key is none."""
    if not is_array(leaf) or not leaf.shape or leaf.shape[0] < least:
        return False
    jax = jax_compat.import_jax()
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return not is_key and not (str(leaf.dtype) == "uint32" and leaf.shape == (2,))


def _split_leaves(
    call: Arguments, mesh: Any, axis: str, size: int, chosen: set[int], batch: set[int]
) -> dict[int, Any]:
    """Return those of the chosen leaves that can be split over an axis, by number, split.

    A batch is split along its leading dim, another array along its largest that can be. What is
    split already is left.
    """
    jax = jax_compat.import_jax()
    found = {}
    for i in sorted(chosen):
        leaf = call.leaves[i]
        if not is_array(leaf):  # a Python number, such as the step of a new TrainState
            continue
        rank = len(leaf.shape)
        before = jax_compat.split_of(getattr(leaf, "sharding", None), rank) or ((),) * rank
        dims = [d for d, n in enumerate(leaf.shape) if n >= size and n % size == 0]
        dims = [d for d in dims if d == 0] if i in batch else dims
        if any(before) or not dims:
            continue
        most = max(dims, key=lambda d: (leaf.shape[d], -d))
        spec = jax.sharding.PartitionSpec(*(axis if d == most else None for d in range(rank)))
        sharding = jax.sharding.NamedSharding(mesh, spec)
        found[i] = like(leaf, leaf.shape, leaf.dtype, sharding)
    return found


def _nbytes(leaf: Any) -> int:
    size = 1
    for n in leaf.shape:
        size *= n
    return size * int(leaf.dtype.itemsize)


def _moved_text(made: HostState) -> str:
    """Return what to do for a step with its optimizer state in host memory."""
    each = " array by array" if made.count > 1 else ""
    names = _listed(_names(made.paths))
    return (
        f"optimizer state ({names}) in host memory, fetched, updated and put back{each} in a"
        " jax.lax.cond"
    )


def _names(paths: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(map(argument_name, paths)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


@contextlib.contextmanager
def _where_traced(change: str) -> Iterator[None]:
    """Leave out what cannot be traced: the function may raise anything of other shapes."""
    with contextlib.suppress(RetraceError), retracing(change):
        yield
