"""Change the checkpoints of a program: rewrite what it differentiates, and differentiate it again.

No user code runs again, but for what cannot be taken apart; see `holes`.
"""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, JaxresidError, summary
from jaxresid.inspector.checkpoints.policies import answers
from jaxresid.inspector.checkpoints.removed import Removed
from jaxresid.inspector.checkpoints.sites import CheckpointSite, has_rule, is_derived
from jaxresid.inspector.few_layers import can_leave_out_layers, few_layers, whole_figures
from jaxresid.inspector.holes.apart import Loss
from jaxresid.inspector.holes.holes import Hole, Holes
from jaxresid.inspector.jaxpr.alike import structural_key as alike
from jaxresid.inspector.jaxpr.alike.repeats import Shortened, shortened
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.inline import Inlining, flattened, without
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.jaxpr.phases import UPDATE, phase_of
from jaxresid.inspector.jaxpr.rewrite import Regroup, Replace, rewritten
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.trace.function import BackwardError
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.choices import (
    CheckpointPlace,
    Choice,
    Choices,
    Details,
    Nest,
    Variant,
)
from jaxresid.inspector.variants.cutting import cut, with_folded_numbers_as_inputs
from jaxresid.inspector.variants.groups import Stretched, carried_nbytes, groups_of
from jaxresid.inspector.variants.naming import expressed, named
from jaxresid.inspector.variants.nesting import carries, nested_eqn, sizes_of
from jaxresid.inspector.variants.regions import EqnRun, Found, Region, regions
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import Cost, Expression, Location


@dataclass(frozen=True, slots=True, eq=False)
class _Loop:
    """A scan that is not inside another loop of what is differentiated."""

    eqn: Eqn
    jaxpr: Jaxpr
    function: str
    location: Location | None
    length: int
    trips: int


class CheckpointVariants:
    """The variants of a program; see `choices.Variants`.

    Args:
      holes: what the program differentiates.
      profile: the profile of the compiler.
      name: the name of the program.

    Raises:
      JaxresidError: what it differentiates cannot be told.
    """

    def __init__(self, holes: Holes[Any], profile: Profile, name: str) -> None:
        self.holes = holes
        self._name = name
        self._profile = profile
        self._frames = holes.levels.frames
        self._bodies: dict[CheckpointPlace, Jaxpr] = {}
        self._checked: dict[tuple[CheckpointPlace, int], Any] = {}
        # Variants share bodies, of which JAX derives everything once.
        self._remake = Checkpointing(self._frames, shares=holes.alone is None)
        self._flat: dict[Hashable, tuple[Choices, Shortened | None]] = {}
        self._sites = functools.cache(lambda: Removed(holes).sites)
        self.places = functools.cache(self._places)
        self.nests = functools.cache(self._nests)
        self._regions = functools.cache(self._find_regions)
        self._ids = functools.cache(_ids_in)
        # The ids of the eqns whose results each expression is.
        self._made_by = functools.cache(self._find_made_by)

    def _find_regions(self, hole: Hole) -> Found:
        return regions(hole.jaxpr, self.holes.levels)

    def _places(self) -> tuple[CheckpointPlace, ...]:
        holes = self.holes.holes
        found = [_checkpoint(site) for site in self._sites() if site.is_as_written]
        found += self._loop_places("scan", self._loops())
        found += [
            CheckpointPlace(
                r.kind,
                r.function,
                r.location,
                len(r.runs),
                len(r.runs) * hole.trips,
                can_split=True,
                handle=r,
                defined=r.defined,
                layers=r.layers,
                by_framework=r.by_framework,
            )
            for hole in holes
            for r in self._regions(hole).calls
            if not any(
                is_derived(e) for run in r.runs for e in run.jaxpr.eqns[run.start : run.stop]
            )
        ]
        for hole in holes:
            function = self.holes.function_of(hole, self._name)
            if function is not None:
                name, defined = function
                found.append(
                    CheckpointPlace(
                        "whole", name, None, 1, hole.trips, handle=hole, defined=defined
                    )
                )
        return tuple(found)

    def unchangeable(self) -> tuple[str, ...]:
        """Return the checkpoints that are no places; see `choices.Variants`."""
        return tuple(str(site) for site in self._sites() if not site.is_as_written)

    def _loops(self) -> list[_Loop]:
        """Return the outermost scans of what is differentiated."""
        return [loop for hole in self.holes.holes for loop in self._scans(hole.level, hole.trips)]

    def _loop_places(self, kind: str, found: Sequence[_Loop]) -> list[CheckpointPlace]:
        groups: dict[Hashable, list[_Loop]] = {}
        for loop in found:
            key = (loop.function, loop.location and (loop.location.file, loop.location.line))
            groups.setdefault(key, []).append(loop)
        return [
            CheckpointPlace(
                kind,
                loops[0].function,
                loops[0].location,
                len(loops),
                sum(loop.trips for loop in loops),
                prevent_cse=False,
                handle=tuple(loops),
            )
            for loops in groups.values()
        ]

    def _nests(self) -> tuple[Nest, ...]:
        loops = [
            loop
            for loop in self._loops()
            if carries(jax_compat.params(loop.eqn)) and not loop.jaxpr.effects
        ]
        found = []
        for place in self._loop_places("segments", loops):
            lengths = {loop.length for loop in place.handle}
            sizes = [sizes_of(jax_compat.params(loop.eqn)) for loop in place.handle]
            if len(lengths) == 1:
                carry, xs = (sum(each) for each in zip(*sizes, strict=True))
                found.append(Nest(place, self._inside(place), lengths.pop(), carry, xs))
        return (*found, *self._groups())

    def _groups(self) -> Iterator[Nest]:
        """Yield the Python loops whose iterations may be grouped, those of one line as one."""
        for hole in self.holes.holes:
            for place in groups_places(self._regions(hole).loops):
                loops: tuple[Region, ...] = place.handle
                _, within = _extent(place)
                inside = tuple(
                    p
                    for p in self.places()
                    if p.kind in ("checkpoint", "call", "block") and _extent(p)[0] <= within
                )
                carry = sum(carried_nbytes(loop.runs[0].jaxpr, bounds_of(loop)) for loop in loops)
                yield Nest(place, inside, len(loops[0].runs), carry, 0)

    def _inside(self, nest: CheckpointPlace) -> tuple[CheckpointPlace, ...]:
        """Return the checkpoints in the bodies of loops; without any, the bodies themselves."""
        own, inside = _extent(nest)
        sites = [p for p in self.places() if p.kind == "checkpoint"]
        held = tuple(p for p in sites if _extent(p)[0] <= inside)
        if held:
            return held
        scans = [p for p in self.places() if p.kind == "scan"]
        return tuple(p for p in scans if _extent(p)[0] == own)

    def _scans(self, level: Level, trips: int) -> list[_Loop]:
        found = []
        for eqn in level.jaxpr.eqns:
            if phase_of(jax_compat.name_stack(eqn)) != UPDATE:
                # What a derivative that the function takes itself made of a loop: a checkpoint in
                # the code stands around the body before it is differentiated.
                continue
            nests = self.holes.levels.nests(eqn)
            if is_derived(eqn):
                continue
            if jax_compat.primitive_name(eqn) == "scan":
                length = nests[0].length or 1
                if length > 1:
                    body = nests[0].jaxpr
                    function = (jax_compat.traced_function(body) or "body").partition(" at ")[0]
                    where = self.holes.levels.location(level, eqn)
                    name = function.rpartition(".")[2]
                    found.append(_Loop(eqn, body, name, where, length, length * trips))
                continue
            for which, nest in enumerate(nests):
                if nest.kind == "call" and not has_rule(eqn):
                    found += self._scans(self.holes.levels.enter(level, eqn, which), trips)
        return found

    def body(self, place: CheckpointPlace) -> Jaxpr:
        """Return the open jaxpr that the first call of a place runs; see `choices.Variants`."""
        found = self._bodies.get(place)
        if found is None:
            found = self._bodies[place] = _without_checkpoints(self._body(place))
        return found

    def _body(self, place: CheckpointPlace) -> Jaxpr:
        found: Jaxpr
        match place.kind:
            case "checkpoint":
                found = place.handle.calls[0].jaxpr
            case "scan" | "segments":
                found = place.handle[0].jaxpr
            case "call" | "block":
                found = _cut_out(place.handle.runs[0])
            case "groups":
                found = _cut_out(place.handle[0].runs[0])
            case _:
                found = place.handle.jaxpr
        return found

    def overlaps(self) -> tuple[tuple[CheckpointPlace, CheckpointPlace], ...]:
        """Return the pairs of places that overlap; see `choices.Variants`."""
        places = self.places()
        own, inside = {}, {}
        for place in places:
            own[place], inside[place] = _extent(place)
        return tuple((a, b) for a in places for b in places if a is not b and inside[a] & own[b])

    def variant(self, choices: Choices) -> Variant:
        """Apply choices, differentiate again, and measure; see `choices.Variants`."""
        return self._of_few_layers(choices) or self.measured(self.trace(choices))

    def _of_few_layers(self, choices: Choices) -> Variant | None:
        """Return a variant worked out from a few of the layers that a loss repeats.

        None where it has no such layers, or where that would not be exact. As it is written it is
        traced already, of its code and not of its jaxpr: some numbers are literals in one alone.
        """
        alone = self.holes.alone
        if not choices or alone is None or not can_leave_out_layers(alone):
            return None
        short = self._shortened(choices)
        if short is None:
            return None
        with _explaining():
            few = few_layers(alone, short)
        figures = whole_figures(few, self._profile)
        if figures is None:
            return None
        return Variant(
            lambda: (figures.kept_nbytes, figures.host_nbytes),
            figures.peak_nbytes,
            sum(figures.passes, Cost()),
            figures.lowered,
            functools.cache(lambda: self.details(self.trace(choices))),
            few,
        )

    def trace(self, choices: Choices) -> Traced:
        """Return the trace with choices made.

        Raises:
          JaxresidError: JAX cannot differentiate it, or a policy fails.
        """
        made: Traced = self.holes.traced
        if choices:
            changed = self._rewritten(choices)
            with _explaining():
                made = self.holes.trace(changed)
        return made

    def losses(self, choices: Choices) -> tuple[Loss, ...]:
        """Return what the program differentiates, with choices made.

        Raises:
          JaxresidError: as `trace`.
        """
        return self.holes.losses(self._rewritten(choices))

    def measured(self, traced: Traced) -> Variant:
        """Return a trace with its figures."""
        program = self.program(traced)
        lowered = lower(program, self._profile)
        return Variant(
            functools.cache(lambda: self.holes.kept_nbytes(traced, program)),
            peak_nbytes(lowered),
            self.holes.cost(traced),
            lowered,
            lambda: self.details(traced, program),
        )

    def program(self, traced: Traced) -> Program:
        """Return the whole program of a trace with choices made."""
        return self.holes.program(traced)

    def details(self, traced: Traced, program: Program | None = None) -> Details:
        """Return the details of a trace.

        Args:
          traced: the trace.
          program: its program, where that is known.
        """
        known = program or self.program(traced)
        return Details(
            known,
            traced,
            functools.cache(lambda: self.holes.residuals(traced, known)),
            lambda: self.holes.kept(traced, known),
        )

    def _shortened(self, choices: Choices) -> Shortened | None:
        """Return the only jaxpr with choices made and with layers left out; None without any."""
        whole = next((made[0] for p, made in choices.items() if p.kind == "whole"), None)
        if whole is None:
            (jaxpr,) = self._rewritten(choices).values()
            return shortened(jaxpr)
        if whole.names:
            return None
        inside = {p: made for p, made in choices.items() if p.kind != "whole"}
        short = self._shortened_flat(inside)
        if short is None:
            return None
        return replace(short, jaxpr=self._remake.wrapped(short.jaxpr, whole, prevent_cse=True))

    def _shortened_flat(self, choices: Choices) -> Shortened | None:
        """Return the primal jaxpr with choices made, without calls and with layers left out."""
        key = tuple((place, tuple(c and _key(c) for c in made)) for place, made in choices.items())
        if key not in self._flat:
            (jaxpr,) = self._rewritten(choices).values()
            flat = flattened(jaxpr, everywhere=True)
            self._flat[key] = choices, shortened(flat)  # the policies are kept: a key has their ids
        return self._flat[key][1]

    def _rewritten(self, choices: Choices) -> dict[int, Jaxpr]:
        """Return what is differentiated with choices made, by the numbers of the holes.

        Raises:
          InputsError: a policy fails or gives no answer.
        """
        for place, made in choices.items():
            for policy in {id(c.policy): c.policy for c in made if c is not None}.values():
                self._check_policy(place, policy)
        eqns: dict[int, Replace] = {}
        jaxprs: dict[int, Jaxpr] = {}
        remake, inlining = self._remake, Inlining()

        def inline(eqn: Eqn) -> Eqn:
            return inlining(remake.shared(eqn))

        wholes: dict[int, Choice | None] = {}
        cuts: dict[int, list[Stretched]] = {}
        nests: dict[int, Replace] = {}
        for place, made in choices.items():
            if place.kind == "whole":
                wholes[place.handle.number] = made[0]
            elif place.kind in ("call", "block"):
                for run, choice in zip(place.handle.runs, made, strict=True):
                    if choice is not None:
                        jaxprs[id(run.jaxpr)] = run.jaxpr
                        cuts.setdefault(id(run.jaxpr), []).append((run.start, run.stop, choice))
            elif place.kind == "groups":
                for loop, choice in zip(place.handle, made, strict=True):
                    if choice is not None:
                        jaxpr = loop.runs[0].jaxpr
                        jaxprs[id(jaxpr)] = jaxpr
                        cuts.setdefault(id(jaxpr), []).extend(groups_of(bounds_of(loop), choice))
            elif place.kind == "scan":
                for loop, choice in zip(place.handle, made, strict=True):
                    if choice is not None:
                        _put(eqns, loop.eqn, remake.loop(choice), place)
            elif place.kind == "segments":
                for loop, choice in zip(place.handle, made, strict=True):
                    if choice is not None:
                        _put(nests, loop.eqn, remake.nest(choice), place)
            else:
                for call, choice in zip(place.handle.calls, made, strict=True):
                    what = inline if choice is None else remake.remat(choice)
                    _put(eqns, call.eqn, what, place)
        regroups = {key: regroup(jaxpr, cuts[key], remake) for key, jaxpr in jaxprs.items()}
        for key, nest in nests.items():
            eqns[key] = _after(eqns[key], nest) if key in eqns else nest
        elsewhere = self._names_outside(choices)
        changed: dict[int, Jaxpr] = {}
        for hole in self.holes.holes:
            own = self._ids(hole)
            done = rewritten(
                hole.jaxpr,
                {key: eqn for key, eqn in eqns.items() if key in own},
                {key: made for key, made in regroups.items() if key in own},
            )
            whole = wholes.get(hole.number)
            if whole is not None:
                done = remake.wrapped(done, whole, prevent_cse=True)
            if elsewhere:
                done = named(done, elsewhere, self._frames, loops=True)
            changed[hole.number] = flattened(done, everywhere=bool(nests))
        return changed

    def _check_policy(self, place: CheckpointPlace, policy: Any) -> None:
        if (place, id(policy)) not in self._checked:
            answers(policy, eqns_in(self.body(place)), str(place))
            self._checked[place, id(policy)] = policy

    def _names_outside(self, choices: Choices) -> tuple[tuple[Expression, str], ...]:
        """Return the names that a place's code also gives to values outside the place.

        That happens where another place runs the same code.
        """
        names: dict[Expression, str] = {}
        inside: dict[Expression, set[int]] = {}
        for place, made in choices.items():
            each = [dict(choice.names) if choice is not None else {} for choice in made]
            names |= {e: name for found in each for e, name in found.items()}
            extent = _extent(place)[1] if any(each) else set()
            for expression in each[0]:
                if all(expression in found for found in each):
                    inside.setdefault(expression, set()).update(extent)
        return tuple(
            (expression, name)
            for expression, name in names.items()
            if self._made_by()[expression] - inside.get(expression, set())
        )

    def _find_made_by(self) -> Mapping[Expression, set[int]]:
        found: dict[Expression, set[int]] = defaultdict(set)
        for hole in self.holes.holes:
            for value in expressed(hole.jaxpr, self._frames, loops=True):
                if value.expression is not None and value.name is None:
                    found[value.expression].add(id(value.eqn))
        return found


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    """Turn what differentiating a rewritten jaxpr raises into errors for users.

    Raises:
      JaxresidError: JAX cannot differentiate it, or a policy fails.
    """
    try:
        yield
    except JaxresidError:
        raise
    except Exception as e:
        cause = e.__cause__ if isinstance(e, BackwardError) else e
        raise InputsError(summary(cause or e)) from e


def _key(choice: Choice) -> Hashable:
    """Return a key that equal choices share; a policy may be an object that has no hash."""
    return id(choice.policy), choice.names, choice.segments


def _after(first: Replace, then: Replace) -> Replace:
    return lambda eqn: then(first(eqn))


def _put(eqns: dict[int, Replace], eqn: Eqn, what: Replace, place: CheckpointPlace) -> None:
    known = eqns.setdefault(id(eqn), what)
    if known is not what:
        raise InputsError(
            f"the calls at {place} go through one jitted function, so they cannot be told apart"
        )


class Checkpointing:
    """A maker of remat eqns.

    Equal choices are one object, bodies that are one object stay one, and those alike become one.

    Args:
      frames: reads the tracebacks of eqns.
      shares: whether the bodies of checkpoints that are there become one, too. Layers of a loss are
        left out instead.
    """

    def __init__(self, frames: Frames, *, shares: bool) -> None:
        self._frames, self._shares = frames, shares
        self._made: dict[Hashable, tuple[Jaxpr, Jaxpr]] = {}
        self._bodies: dict[Hashable, Jaxpr] = {}
        self._replaces: dict[Hashable, Replace] = {}

    def remat(self, choice: Choice) -> Replace:
        """Return a function from a remat eqn to the same eqn under another choice."""
        return self._replaces.setdefault(("remat", _key(choice)), self._remat(choice))

    def loop(self, choice: Choice) -> Replace:
        """Return a function from a scan to the same scan with its body checkpointed."""
        return self._replaces.setdefault(("loop", _key(choice)), self._loop(choice))

    def nest(self, choice: Choice) -> Replace:
        """Return a function from a scan to the same scan in segments."""

        def replace(eqn: Eqn) -> Eqn:
            held = jax_compat.params(eqn)["jaxpr"]
            body = self.named(jax_compat.open_jaxpr(held), choice)
            made = jax_compat.with_params(eqn, {"jaxpr": jax_compat.with_jaxpr(held, body)})
            return nested_eqn(made, choice.segments, choice.policy)

        return self._replaces.setdefault(("nest", _key(choice)), replace)

    def _remat(self, choice: Choice) -> Replace:
        def replace(eqn: Eqn) -> Eqn:
            made = self.shared(eqn)
            held = jax_compat.params(made)["jaxpr"]
            body = self.named(jax_compat.open_jaxpr(held), choice)
            return jax_compat.with_params(
                made, {"policy": choice.policy, "jaxpr": jax_compat.with_jaxpr(held, body)}
            )

        return replace

    def shared(self, eqn: Eqn) -> Eqn:
        """Return a remat eqn with the one object of all bodies alike, of which JAX derives once.

        Numbers that are folded into random keys are inputs of it.
        """
        held = jax_compat.params(eqn)["jaxpr"]
        body = jax_compat.open_jaxpr(held)
        if not self._shares or body.constvars:
            return eqn
        invars = eqn.invars
        if not jax_compat.flags().get("jax_remat3"):  # the primitive knows its inputs there
            body, numbers = with_folded_numbers_as_inputs(body)
            invars = [*invars, *numbers]
        one = self._bodies.setdefault(alike.key(body), body)
        return jax_compat.with_params(
            eqn.replace(invars=invars), {"jaxpr": jax_compat.with_jaxpr(held, one)}
        )

    def _loop(self, choice: Choice) -> Replace:
        def replace(eqn: Eqn) -> Eqn:
            held = jax_compat.params(eqn)["jaxpr"]
            body = self._cached(
                ("loop", _key(choice)),
                jax_compat.open_jaxpr(held),
                lambda body: self.wrapped(body, choice, prevent_cse=False),
            )
            return jax_compat.with_params(eqn, {"jaxpr": jax_compat.with_jaxpr(held, body)})

        return replace

    def wrapped(self, jaxpr: Jaxpr, choice: Choice, *, prevent_cse: bool) -> Jaxpr:
        """Return an open jaxpr with all of its eqns in one checkpoint."""
        return jaxpr.replace(
            eqns=list(self.around(jaxpr, 0, len(jaxpr.eqns), jaxpr.eqns, choice, prevent_cse))
        )

    def around(
        self,
        jaxpr: Jaxpr,
        start: int,
        stop: int,
        eqns: Sequence[Eqn],
        choice: Choice,
        prevent_cse: bool = True,
    ) -> Sequence[Eqn]:
        """Return some eqns of a jaxpr, as rewritten, in one checkpoint."""
        if not eqns:
            return ()
        own = cut(jaxpr, start, stop, eqns)
        inside, numbers = with_folded_numbers_as_inputs(own)
        body = self._bodies.setdefault(alike.key(inside), inside)
        made = jax_compat.as_remat(
            self.named(body, choice), [*own.invars, *numbers], own.outvars, eqns[0]
        )
        return (
            jax_compat.with_params(made, {"policy": choice.policy, "prevent_cse": prevent_cse}),
        )

    def named(self, body: Jaxpr, choice: Choice) -> Jaxpr:
        """Return an open jaxpr with the values named that a choice names."""
        if not choice.names:
            return body
        return self._cached(
            ("named", choice.names), body, lambda body: named(body, choice.names, self._frames)
        )

    def _cached(self, key: Hashable, body: Jaxpr, make: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
        found = self._made.get((key, id(body)))
        if found is None:
            found = self._made[key, id(body)] = body, make(body)
        return found[1]


def regroup(jaxpr: Jaxpr, cuts: Sequence[Stretched], remake: Checkpointing) -> Regroup:
    """Return a function that puts stretches of a jaxpr's eqns into checkpoints.

    One stretch may be inside another.
    """

    def around(
        eqns: Sequence[Eqn], start: int, stop: int, within: Sequence[Stretched]
    ) -> list[Eqn]:
        made: list[Eqn] = []
        at, left = start, list(within)
        while left:
            first, last, choice = left.pop(0)
            inner = [each for each in left if each[1] <= last]
            left = left[len(inner) :]
            made += eqns[at:first]
            made += remake.around(jaxpr, first, last, around(eqns, first, last, inner), choice)
            at = last
        return [*made, *eqns[at:stop]]

    in_order = sorted(cuts, key=lambda each: (each[0], -each[1]))
    return lambda eqns: around(eqns, 0, len(eqns), in_order)


def groups_places(loops: Iterable[Region]) -> list[CheckpointPlace]:
    """Return the places of Python loops whose iterations may be grouped, those alike as one."""
    alike: dict[Hashable, list[Region]] = {}
    for loop in loops:
        eqns = (e for run in loop.runs for e in run.jaxpr.eqns[run.start : run.stop])
        if not any(is_derived(eqn) for eqn in eqns):
            alike.setdefault((loop.function, loop.location, len(loop.runs)), []).append(loop)
    return [
        CheckpointPlace(
            "groups",
            each[0].function,
            each[0].location,
            len(each),
            len(each) * len(each[0].runs),
            handle=tuple(each),
        )
        for each in alike.values()
    ]


def bounds_of(loop: Region) -> list[tuple[int, int]]:
    """Return the first eqn of each iteration of a loop, and that after its last."""
    return [(run.start, run.stop) for run in loop.runs]


def _cut_out(run: EqnRun) -> Jaxpr:
    return cut(run.jaxpr, run.start, run.stop, run.jaxpr.eqns[run.start : run.stop])


def _extent(place: CheckpointPlace) -> tuple[set[int], set[int]]:
    """Return the ids of the eqns that a place consists of, and the ids of the eqns inside it."""
    match place.kind:
        case "checkpoint":
            eqns = [call.eqn for call in place.handle.calls]
        case "scan" | "segments":
            eqns = [loop.eqn for loop in place.handle]
        case "call" | "block" | "groups":
            loops = place.handle if place.kind == "groups" else (place.handle,)
            runs = [run for loop in loops for run in loop.runs]
            eqns = [e for run in runs for e in run.jaxpr.eqns[run.start : run.stop]]
            return {id(e) for e in eqns}, {id(e) for e in _within(eqns)} | {id(e) for e in eqns}
        case _:
            return set(), {id(e) for e in eqns_in(place.handle.jaxpr)}
    return {id(e) for e in eqns}, {id(e) for e in _within(eqns)}


def _ids_in(hole: Hole) -> frozenset[int]:
    """Return the ids of the eqns and of the jaxprs in a hole, at any depth."""
    jaxprs = [hole.jaxpr, *(n.jaxpr for e in eqns_in(hole.jaxpr) for n in nests(e))]
    return frozenset([*map(id, eqns_in(hole.jaxpr)), *map(id, jaxprs)])


def _within(eqns: Iterable[Eqn]) -> Iterator[Eqn]:
    for eqn in eqns:
        for nest in nests(eqn):
            yield from eqns_in(nest.jaxpr)


def _without_checkpoints(jaxpr: Jaxpr) -> Jaxpr:
    removed = [id(eqn) for eqn in eqns_in(jaxpr) if jax_compat.primitive_name(eqn) == "remat"]
    return without(jaxpr, removed) if removed else jaxpr


def _checkpoint(site: CheckpointSite) -> CheckpointPlace:
    return CheckpointPlace(
        "checkpoint",
        site.function,
        site.location,
        len(site.calls),
        site.trips,
        site.policy,
        site.prevent_cse,
        len(site.eqns) == len(site.calls),
        site,
        site.body.defined,
    )
