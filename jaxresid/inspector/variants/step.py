"""Change the checkpoints of a training step: trace it again, see `bindings`.

Variants whose checkpoints differ in policies and names alone share a trace, see `joined`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from jaxresid import jax_compat
from jaxresid.errors import JaxresidError, TraceError
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.checkpoints.policies import answers, description
from jaxresid.inspector.checkpoints.sites import Body, CheckpointSite, prevents_cse, sites
from jaxresid.inspector.cost.jaxpr_cost import Costs
from jaxresid.inspector.jaxpr.alike import structural_key
from jaxresid.inspector.jaxpr.bindings import (
    Handler,
    checkpoint_binding,
    intercept_bind,
    scan_binding,
    strip_trace_context,
    user_line,
)
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.inline import without
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import JaxprReader
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.program.step_roles import Roles, roles
from jaxresid.inspector.residuals.offloading import kept_of
from jaxresid.inspector.residuals.step import step_kept_nbytes, step_residuals
from jaxresid.inspector.trace.failures import trace_error
from jaxresid.inspector.trace.step import StepTrace, step_primal, step_trace
from jaxresid.inspector.variants.choices import (
    CheckpointPlace,
    Choice,
    Choices,
    Details,
    Nest,
    Variant,
)
from jaxresid.inspector.variants.cutting import with_folded_numbers_as_inputs
from jaxresid.inspector.variants.function import Checkpointing
from jaxresid.inspector.variants.joined import (
    Gradients,
    Key,
    Slots,
    joined,
    leaving_out,
)
from jaxresid.inspector.variants.losses import (
    Loss,
    LossCalls,
    Losses,
    LossLoops,
    OtherEqnsError,
    tracing_losses,
    trips_of,
)
from jaxresid.inspector.variants.nesting import carries, nested_scan, sizes_of
from jaxresid.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr
from jaxresid.model import Location, Residual


@dataclass(frozen=True, slots=True, eq=False)
class _Binding:
    """One binding of `jax.checkpoint` or `lax.scan`.

    Attributes:
      kind: `checkpoint` or `scan`.
      body: the open jaxpr that it calls.
      policy: the policy of a checkpoint.
      prevent_cse: whether a checkpoint prevents CSE.
      location: the user's line, for a scan.
      params: what a scan is bound with.
    """

    kind: str
    body: Jaxpr
    policy: Any = None
    prevent_cse: bool = False
    location: Location | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> str:
        name = (jax_compat.traced_function(self.body) or "").partition(" at ")[0]
        return name.rpartition(".")[2] or "a function"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class _Marking:
    """A policy that saves nothing and marks what was bound.

    By it, what was bound is found again in the jaxpr that JAX made of it: in which loops it is,
    and whether any gradient goes through it.
    """

    number: int

    def __call__(self, *_: Any, **__: Any) -> bool:
        return False


@dataclass(slots=True, eq=False)
class _BackwardUse:
    """The context in a backward pass of something that was bound.

    Attributes:
      site: the checkpoint that it is part of; a loop's body was marked as one.
      trips: how often it runs.
      around: the numbers of the bindings around it, outermost first.
    """

    site: CheckpointSite
    trips: int = 0
    around: list[int] = field(default_factory=list)

    def add(self, trips: int, around: list[int]) -> None:
        self.trips += trips
        self.around = list(dict.fromkeys([*self.around, *around]))


@dataclass(frozen=True, slots=True, eq=False)
class _Slotted:
    """A step with slots for choices, and its gradients, left out of it."""

    step: StepTrace
    gradients: Gradients
    slots: Slots


def _as_it_is(_: Key, choice: Choice, __: Jaxpr) -> Choice:
    return choice


class _BindingChanges:
    """What a step binds, with choices made, while it is traced.

    Attributes:
      found: the kinds and the functions of what was bound.
      remake: makes the checkpoints.

    Args:
      frames: reads the tracebacks of eqns.
      shared: returns the one object of all bodies alike.
      chosen: the choices, by the number of the binding.
      nested: those that cut scans, by number.
      as_calls: whether to leave one eqn for what is bound: calls in a loss are found again by the
        numbers of its eqns.
      fitted: the choice to make in place of one, given its key and the body.
    """

    def __init__(
        self,
        frames: Frames,
        shared: Callable[[Jaxpr], Jaxpr],
        chosen: Mapping[int, Choice | None],
        nested: Mapping[int, Choice | None],
        as_calls: bool,
        fitted: Callable[[Key, Choice, Jaxpr], Choice] = _as_it_is,
    ) -> None:
        self.found: list[tuple[str, str]] = []
        self.remake = Checkpointing(frames)
        self._frames, self._shared = frames, shared
        self._chosen, self._nested = chosen, nested
        self._as_calls, self._fitted = as_calls, fitted
        self._is_nesting = False
        self._scan = scan_binding().primitive
        self._checkpoint = checkpoint_binding().primitive

    def checkpoint(
        self, params: Mapping[str, Any], _: FrameType
    ) -> Mapping[str, Any] | Callable[..., Any]:
        """Return what a checkpoint binds; see `bindings.Handler`."""
        if self._is_nesting:
            return params
        number = len(self.found)
        made = _checkpoint(params)
        self.found.append((made.kind, made.function))
        if number not in self._chosen:
            return params
        choice = self._chosen[number]
        body, numbers = self._alike(made.body)
        if choice is None:
            run = jax_compat.as_function(jax_compat.as_jit_jaxpr(body))
            return self._as_one(lambda *args: run(*args, *numbers))
        choice = self._fitted(("place", number), choice, body)
        held = jax_compat.bound_params(params)["jaxpr"]
        named = self.remake.named(body, choice)
        changed = jax_compat.with_bound_params(
            params, {"policy": choice.policy, "jaxpr": jax_compat.with_jaxpr(held, named)}
        )
        if not numbers:
            return changed
        return lambda *args: self._checkpoint.bind(*args, *numbers, **changed)

    def _alike(self, body: Jaxpr) -> tuple[Jaxpr, list[Any]]:
        """Return the one object of all bodies that are this one but for numbers folded into keys.

        These numbers come with it; they are its last inputs.
        """
        if jax_compat.flags().get("jax_remat3"):  # the primitive knows its inputs there
            return self._shared(body), []
        made, literals = with_folded_numbers_as_inputs(body)
        return self._shared(made), [each.val for each in literals]

    def scan(
        self, params: Mapping[str, Any], _: FrameType
    ) -> Mapping[str, Any] | Callable[..., Any]:
        """Return what a scan binds; see `bindings.Handler`."""
        if self._is_nesting:
            return params
        number = len(self.found)
        choice, nest = self._chosen.get(number), self._nested.get(number)
        made = _scan(params, self._frames)
        self.found.append((made.kind, made.function))
        if choice is not None:
            choice = self._fitted(("place", number), choice, made.body)
            params = _wrapped(params, choice, self.remake)
        if nest is None:
            return params
        held = jax_compat.open_jaxpr(params["jaxpr"])
        nest = self._fitted(("segments", number), nest, held)
        body = jax_compat.with_jaxpr(params["jaxpr"], self.remake.named(held, nest))
        params = jax_compat.with_bound_params(params, {"jaxpr": body})
        run = nested_scan(self._scan, params, nest.segments, nest.policy)

        def in_segments(*args: Any) -> Any:
            self._is_nesting = True
            try:
                return run(*args)
            finally:
                self._is_nesting = False

        return self._as_one(in_segments)

    def _as_one(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        return jax_compat.import_jax().jit(fun) if self._as_calls else fun


class StepVariants:
    """The variants of a training step; see `choices.Variants`.

    A call of a place is one that Python makes while JAX traces: what a jitted function holds is
    one call, however often that function is called, and is changed as one.
    """

    def __init__(self, fun: Callable[..., Any], step: StepTrace, profile: Profile) -> None:
        self._fun = fun
        self._step = step
        self._profile = profile
        self._bound: list[_Binding] = []
        self.places = functools.cache(self._places)
        self.nests = functools.cache(self._nests)
        self._roles = functools.cache(lambda: roles(step))
        self._bodies: dict[int, Jaxpr] = {}
        self._around: dict[int, list[int]] = {}
        self._alike: dict[Hashable, Jaxpr] = {}
        self._slotted: dict[Hashable, _Slotted | None] = {}
        # Variants share what checkpoints do not change.
        self._costs = Costs(WhileTrips(step.arguments.trips))
        self._reader = JaxprReader()
        self._losses = Losses((), step.frames, self._is_written, self._name)
        self._trips: Mapping[int, int] = {}

    def _places(self) -> tuple[CheckpointPlace, ...]:
        remake = Checkpointing(self._step.frames)
        bound = self._bound

        def checkpoint(params: Mapping[str, Any], _: FrameType) -> Mapping[str, Any]:
            made = _checkpoint(params)
            bound.append(made)
            return jax_compat.with_bound_params(params, {"policy": _Marking(len(bound) - 1)})

        def scan(params: Mapping[str, Any], _: FrameType) -> Mapping[str, Any]:
            made = _scan(params, self._step.frames)
            bound.append(made)
            if params["length"] < 2 or made.body.effects or self._holds_checkpoint(made.body):
                return params
            return _wrapped(params, Choice(_Marking(len(bound) - 1)), remake)

        marked = self._marked(checkpoint, scan)
        found = self._uses_in_backward(marked)
        self._around = {number: use.around for number, use in found.items()}
        self._trips = trips_of(marked.jaxpr)
        return (*self._grouped(found), *self._losses.places(self._trips))

    def _marked(self, checkpoint: Handler, scan: Handler) -> StepTrace:
        """Return the step traced with these handlers, its losses traced apart where they can be."""
        try:
            with tracing_losses(self._step.frames, marked=True) as losses:
                marked = self._traced(checkpoint, scan)
        except JaxresidError:  # a loss hands out its tracers some other way than by returning them
            self._bound.clear()
            return self._traced(checkpoint, scan)
        self._losses = Losses(losses, self._step.frames, self._is_written, self._name)
        return marked

    def _is_written(self, eqn: Eqn) -> bool:
        """Return whether an eqn of a marked step is a checkpoint that a user wrote."""
        if jax_compat.primitive_name(eqn) != "remat":
            return False
        mark = _mark(eqn)
        return mark is None or self._bound[mark].kind == "checkpoint"

    def _uses_in_backward(self, marked: StepTrace) -> dict[int, _BackwardUse]:
        """Return by number what was bound and occurs in the backward pass of a marked step."""
        levels, found = marked.levels, dict[int, _BackwardUse]()
        for site in sites(levels, Level(marked.jaxpr), backward=True):
            for call in site.calls:
                number = _mark(call.eqn)
                if number is not None:
                    use = found.setdefault(number, _BackwardUse(site))
                    use.add(call.trips, _marks(call.around))
        if jax_compat.flags().get("jax_remat3"):
            # There the policy of a checkpoint holds for those inside of it too, and each of them
            # leaves an eqn that bears its mark.
            for number in sorted(found, reverse=True):
                outer, body = found[number], Level(self._bound[number].body)
                inner = [(s, call) for s in sites(levels, body) for call in s.calls]
                shares = 1 + sum(call.trips for _, call in inner)
                outer.trips = max(outer.trips // shares, 1)
                for site, call in inner:
                    mark = _mark(call.eqn)
                    if mark is not None:
                        around = [*outer.around, number, *_marks(call.around)]
                        use = found.setdefault(mark, _BackwardUse(site))
                        use.add(outer.trips * call.trips, around)
        for use in found.values():
            use.around = [mark for mark in use.around if mark in found]
        return found

    def _grouped(self, found: Mapping[int, _BackwardUse]) -> tuple[CheckpointPlace, ...]:
        """Return the places: what one line binds of one function with one policy is one place."""

        def order(number: int) -> tuple[int, int, int]:
            around = found[number].around  # a body is bound before what it stands in
            return around[0] if around else number, len(around), number

        groups: dict[tuple[str, Body, tuple[str, int] | None, str | None, bool], list[int]] = {}
        for number in sorted(found, key=order):
            made, use = self._bound[number], found[number]
            if made.kind == "scan" and use.around:
                continue
            location = made.location or use.site.location
            line = (location.file, location.line) if location else None
            # Of a loop's body JAX knows the function itself.
            body = use.site.body if made.kind == "checkpoint" else Body(made.function)
            key = (made.kind, body, line, description(made.policy), made.prevent_cse)
            groups.setdefault(key, []).append(number)
        return tuple(
            CheckpointPlace(
                kind=key[0],
                function=key[1].name,
                location=self._bound[numbers[0]].location or found[numbers[0]].site.location,
                calls=len(numbers),
                trips=sum(found[number].trips for number in numbers),
                policy=self._bound[numbers[0]].policy,
                prevent_cse=key[-1],
                can_split=key[0] == "checkpoint",
                handle=tuple(sorted(numbers)),
                defined=key[1].defined,
            )
            for key, numbers in groups.items()
        )

    def _nests(self) -> tuple[Nest, ...]:
        """Return the loops that may be cut into segments; see `choices.Variants`.

        They are those in no other whose bodies the backward pass runs again.
        """
        places = [p for p in self.places() if not isinstance(p.handle, LossCalls)]
        groups: dict[tuple[str, Location | None, int], list[int]] = {}
        inside: dict[int, set[int]] = {}
        known: set[int] = set()
        for number in range(len(self._bound) - 1, -1, -1):
            made = self._bound[number]
            if made.kind != "scan":
                continue
            marks = {m for e in eqns_in(made.body) if (m := _mark_of(e)) is not None}
            held = {m for m in marks if self._bound[m].kind == "checkpoint"} & self._around.keys()
            own = held or {number} & self._around.keys()
            is_inner = number in known or (held and held <= known)
            known |= marks
            if own and not is_inner and carries(made.params) and not made.body.effects:
                inside[number] = own
                where = made.location
                groups.setdefault((made.function, where, made.params["length"]), []).append(number)
        found = []
        for (function, where, length), numbers in groups.items():
            sizes = [sizes_of(self._bound[number].params) for number in numbers]
            carry, xs = (sum(each) for each in zip(*sizes, strict=True))
            own = set().union(*(inside[number] for number in numbers))
            within = tuple(p for p in places if own & set(p.handle))
            place = CheckpointPlace(
                "segments",
                function,
                where,
                len(numbers),
                length * len(numbers),
                handle=tuple(sorted(numbers)),
            )
            found.append(Nest(place, within, length, carry, xs))
        return (*reversed(found), *self._groups())

    def _groups(self) -> Iterator[Nest]:
        """Yield the Python loops in losses whose iterations may be grouped."""
        for place, carry in self._losses.loops(self._trips):
            marks = {_mark_of(eqn) for eqn in self._losses.eqns(place)}
            inside = tuple(
                p
                for p in self.places()
                if (
                    self._losses.is_in(p, place)
                    if isinstance(p.handle, LossCalls)
                    else p.kind == "checkpoint" and set(p.handle) <= marks
                )
            )
            first = place.handle.loops[0]
            yield Nest(place, inside, len(first), carry, 0)

    def _holds_checkpoint(self, body: Jaxpr) -> bool:
        """Return whether a jaxpr holds a checkpoint that a user wrote; it may hold one of ours."""
        return any(self._is_written(eqn) for eqn in eqns_in(body))

    def unchangeable(self) -> tuple[str, ...]:
        """Return the checkpoints that are no places: none; see `choices.Variants`."""
        return ()

    def body(self, place: CheckpointPlace) -> Jaxpr:
        """Return the open jaxpr that the first call of a place runs; see `choices.Variants`."""
        self.places()
        in_loss = isinstance(place.handle, LossCalls | LossLoops)
        number = id(place) if in_loss else place.handle[0]
        if number not in self._bodies:
            body = self._losses.body(place) if in_loss else self._bound[number].body
            removed = [
                id(eqn) for eqn in eqns_in(body) if jax_compat.primitive_name(eqn) == "remat"
            ]
            self._bodies[number] = without(body, removed) if removed else body
        return self._bodies[number]

    def overlaps(self) -> tuple[tuple[CheckpointPlace, CheckpointPlace], ...]:
        """Return the pairs of places that overlap; see `choices.Variants`."""
        bound: list[CheckpointPlace] = []
        in_losses: list[CheckpointPlace] = []
        for place in self.places():
            (in_losses if isinstance(place.handle, LossCalls | LossLoops) else bound).append(place)
        found = [
            (outer, inner)
            for outer in bound
            for inner in bound
            if any(set(self._around[number]) & set(outer.handle) for number in inner.handle)
        ]
        for outer in in_losses:
            marks = {_mark_of(eqn) for eqn in self._losses.eqns(outer)}
            found += [(outer, inner) for inner in bound if marks & set(inner.handle)]
            found += [(outer, p) for p in in_losses if self._losses.overlap(outer, p)]
        return tuple(found)

    def variant(self, choices: Choices) -> Variant:
        """Apply choices, differentiate again, and measure; see `choices.Variants`."""
        return self.measured(self.trace(choices))

    def trace(self, choices: Choices) -> StepTrace:
        """Return the step traced with choices made.

        Raises:
          JaxresidError: JAX cannot differentiate it, a policy fails, or the function binds other
            checkpoints each time that it is traced.
        """
        if not choices:
            return self._step
        made = self._made(choices)
        return self._joined(*made) or self._traced_with(*made)[0]

    def trace_of(self, leaves: Sequence[Any], choices: Choices) -> StepTrace | None:
        """Return the step traced with other leaves in place of its arguments', with choices made.

        What the step binds has to be the same. None where choices are in a loss that has other
        places with these leaves.

        Args:
          leaves: as many as the arguments have.
          choices: what to do at places of this step.

        Raises:
          JaxresidError: as `trace`.
        """
        self.places()
        chosen, nested, in_losses = self._made(choices)
        call = replace(self._step.arguments, leaves=tuple(leaves))
        try:
            return self._traced_with(chosen, nested, in_losses, call=call)[0]
        except OtherEqnsError:
            return None

    def losses(self, choices: Choices) -> tuple[Loss, ...]:
        """Return what the step differentiates, with choices made; see `trace`.

        Raises:
          JaxresidError: as `trace`, or a loss cannot be traced apart.
        """
        self.places()
        return self._traced_with(*self._made(choices), apart=True)[1]

    def _made(
        self, choices: Choices
    ) -> tuple[
        dict[int, Choice | None],
        dict[int, Choice | None],
        dict[CheckpointPlace, tuple[Choice | None, ...]],
    ]:
        """Return choices at bindings, by their numbers, of segments likewise, and in losses."""
        chosen: dict[int, Choice | None] = {}
        nested: dict[int, Choice | None] = {}
        in_losses: dict[CheckpointPlace, tuple[Choice | None, ...]] = {}
        for place, made in choices.items():
            self._check_policies(place, made)
            if isinstance(place.handle, LossCalls | LossLoops):
                if any(made):
                    in_losses[place] = made
                continue
            which = nested if place.kind == "segments" else chosen
            which.update(zip(place.handle, made, strict=True))
        return chosen, nested, in_losses

    def _joined(
        self,
        chosen: Mapping[int, Choice | None],
        nested: Mapping[int, Choice | None],
        in_losses: Mapping[CheckpointPlace, tuple[Choice | None, ...]],
    ) -> StepTrace | None:
        """Return the step with choices made in a trace that several share, see `joined`.

        None where that cannot be done; what fails in it is told by a trace of its own.
        """
        segments = {n: choice.segments for n, choice in nested.items() if choice is not None}
        # Where all is a checkpoint there is nothing to leave one eqn for.
        as_calls = bool(in_losses) and (bool(segments) or None in chosen.values())
        shape = (
            frozenset((number, choice is None) for number, choice in chosen.items()),
            frozenset(segments.items()),
            as_calls,
        )
        if shape not in self._slotted:
            self._slotted[shape] = self._with_slots(chosen, nested, as_calls=as_calls)
        slotted = self._slotted[shape]
        if slotted is None:
            return None
        choices: dict[Key, Choice] = {}
        for kind, made in (("place", chosen), ("segments", nested)):
            choices |= {(kind, n): choice for n, choice in made.items() if choice is not None}
        try:
            fill = slotted.slots.filling(choices)
            in_loss = self._losses.changing(in_losses, Checkpointing(self._step.frames))

            def change(number: int, closed: ClosedJaxpr) -> ClosedJaxpr:
                filled = fill(jax_compat.open_jaxpr(closed))
                return in_loss(number, jax_compat.with_jaxpr(closed, filled))

            return joined(slotted.step, slotted.gradients, change)
        except Exception:  # the trace without slots raises what is to be raised
            return None

    def _with_slots(
        self,
        chosen: Mapping[int, Choice | None],
        nested: Mapping[int, Choice | None],
        *,
        as_calls: bool,
    ) -> _Slotted | None:
        """Return the step traced with slots in place of choices, without its gradients.

        None where that cannot be done. With `as_calls` one eqn is left for what is bound.
        """
        if jax_compat.flags().get("jax_remat3"):  # there a policy holds for those inside of it too
            return None
        gradients, slots = Gradients(), Slots(self._step.frames)
        changed = {*chosen, *(n for n, choice in nested.items() if choice is not None)}
        changes = _BindingChanges(
            self._step.frames, self._shared, chosen, nested, as_calls, slots.choice
        )
        is_outside = False

        def noting(handler: Handler) -> Handler:
            def handle(
                params: Mapping[str, Any], frame: FrameType
            ) -> Mapping[str, Any] | Callable[..., Any]:
                nonlocal is_outside
                is_outside |= len(changes.found) in changed and not gradients.is_inside
                return handler(params, frame)

            return handle

        try:
            with leaving_out(gradients):
                step = self._traced(noting(changes.checkpoint), noting(changes.scan))
        except Exception:  # whatever it is, the step is traced without slots
            return None
        if is_outside or self._is_other(changes.found, len(gradients.found)):
            return None
        return _Slotted(step, gradients, slots)

    def _is_other(self, found: Sequence[tuple[str, str]], num_losses: int) -> bool:
        """Return whether a trace has other bindings or losses than the first one."""
        expected = [(made.kind, made.function) for made in self._bound]
        return list(found) != expected or num_losses != len(self._losses.found)

    def _traced_with(
        self,
        chosen: Mapping[int, Choice | None],
        nested: Mapping[int, Choice | None],
        in_losses: Mapping[CheckpointPlace, tuple[Choice | None, ...]],
        *,
        apart: bool = False,
        call: Arguments | None = None,
    ) -> tuple[StepTrace, tuple[Loss, ...]]:
        """Return the step traced anew with choices made, and its losses as far as traced apart.

        See `trace`; with `apart` all losses are traced apart, with `call` its arguments are others.
        """
        changes = _BindingChanges(self._step.frames, self._shared, chosen, nested, bool(in_losses))
        changed: dict[int, Loss] = {}

        def seen(number: int, loss: Loss) -> Callable[..., Any]:
            changed[number] = loss
            return jax_compat.as_function(loss.closed)

        if in_losses or apart:
            change = self._losses.changing(in_losses, changes.remake, found_again=call is not None)
            for number, loss in enumerate(self._losses.found if in_losses else ()):
                change(number, loss.closed)  # what JAX has to trace for it is traced here
            with tracing_losses(self._step.frames, change, replacement=seen) as losses:
                traced = self._traced(changes.checkpoint, changes.scan, call)
        else:
            traced = self._traced(changes.checkpoint, changes.scan, call)
            losses = list(self._losses.found)
        if self._is_other(changes.found, len(losses)):
            raise TraceError(
                f"{self._name} changes each time it is traced, so its checkpoints cannot be told"
                " apart"
            )
        return traced, tuple(changed[number] for number in sorted(changed))

    def measured(self, traced: StepTrace) -> Variant:
        """Return a trace with its figures."""
        program = step_program(traced, self._roles_of(traced), self._reader)
        lowered = lower(program, self._profile)

        @functools.cache
        def found() -> tuple[Residual, ...]:
            return step_residuals(traced, program)

        return Variant(
            functools.cache(lambda: step_kept_nbytes(traced, program)),
            peak_nbytes(lowered),
            self._costs.of_program(traced.jaxpr),
            lowered,
            lambda: Details(program, traced, found, lambda: kept_of(found())),
        )

    def _roles_of(self, traced: StepTrace) -> Roles | None:
        """Return the roles of a variant's inputs and outputs: those of the step as it is written.

        None where they are not the same inputs and outputs, as of one that accumulates gradients.
        """

        def signature(step: StepTrace) -> tuple[Hashable, ...]:
            jaxpr = step.jaxpr
            return (
                len(jaxpr.constvars),
                *(tuple(v.aval for v in each) for each in (jaxpr.invars, jaxpr.outvars)),
                step.inputs,
                step.outputs,
                step.num_returned,
                step.donated,
            )

        same = signature(traced) == signature(self._step)
        return self._roles() if same else None

    def _shared(self, body: Jaxpr) -> Jaxpr:
        """Return the one object of all bodies alike, of which JAX derives everything once."""
        if body.constvars:
            return body
        return self._alike.setdefault(structural_key.key(body), body)

    def _check_policies(self, place: CheckpointPlace, made: Iterable[Choice | None]) -> None:
        for policy in {id(c.policy): c.policy for c in made if c is not None}.values():
            answers(policy, eqns_in(self.body(place)), str(place))

    def _traced(
        self, checkpoint: Handler, scan: Handler, call: Arguments | None = None
    ) -> StepTrace:
        call = call or self._step.arguments
        handlers = {checkpoint_binding(): checkpoint, scan_binding(): scan}
        try:
            with intercept_bind(handlers):
                primal = step_primal(self._fun, call)
        except JaxresidError:
            raise
        except Exception as e:
            said = str(trace_error(e, self._name, self._step.frames, call))
            raise TraceError(said.partition("\n")[0]) from e
        made = step_trace(primal, call, self._step.frames)
        strip_trace_context(made.jaxpr)
        return made

    @property
    def _name(self) -> str:
        return getattr(self._fun, "__qualname__", None) or type(self._fun).__name__


def _checkpoint(bound: Mapping[str, Any]) -> _Binding:
    params = jax_compat.bound_params(bound)
    body = jax_compat.open_jaxpr(params["jaxpr"])
    return _Binding("checkpoint", body, params["policy"], prevents_cse(params))


def _scan(bound: Mapping[str, Any], frames: Frames) -> _Binding:
    body = jax_compat.open_jaxpr(bound["jaxpr"])
    return _Binding("scan", body, location=user_line(frames), params=bound)


def _wrapped(bound: Mapping[str, Any], choice: Choice, remake: Checkpointing) -> Mapping[str, Any]:
    """Return the params of a scan with its body checkpointed."""
    held = bound["jaxpr"]
    body = remake.wrapped(jax_compat.open_jaxpr(held), choice, prevent_cse=False)
    return jax_compat.with_bound_params(bound, {"jaxpr": jax_compat.with_jaxpr(held, body)})


def _mark(remat: Eqn) -> int | None:
    policy = jax_compat.params(remat).get("policy")
    return policy.number if isinstance(policy, _Marking) else None


def _mark_of(eqn: Eqn) -> int | None:
    return _mark(eqn) if jax_compat.primitive_name(eqn) == "remat" else None


def _marks(remats: Iterable[Eqn]) -> list[int]:
    return [mark for mark in map(_mark, remats) if mark is not None]
