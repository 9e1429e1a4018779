"""List what can be done at a place: no checkpoint, JAX's policies, and those that save by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxresid.advice.plan.search.proposals import propose_name
from jaxresid.advice.plan.search.solver import ValueChoice, ValueProgram
from jaxresid.inspector.checkpoints.policies import description
from jaxresid.inspector.variants.candidates import PolicyCandidate, candidates, offloading, saving
from jaxresid.inspector.variants.choices import CheckpointPlace, Choice
from jaxresid.inspector.variants.recompute import Graph
from jaxresid.results import PlannedValue

# Points of one place's front; more take the solver longer than they are worth.
_MOST = 200
# Of how many values, the largest, single ones are exchanged.
_MOST_EXCHANGED = 12
# How many of the first and of the largest values are offloaded alone.
_MOST_ALONE = 4


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One thing to do at a place.

    Attributes:
      choice: The checkpoint to put there; None means no checkpoint.
      policy: The policy as written after `jax.checkpoint_policies.`; None means no policy.
      values: The values that it saves and offloads by name.
      changed: Whether the code has to change.
      nbytes: The bytes that are saved on the device besides the body's inputs, all trips together.
        An estimate; None where it is not known before it is tried.
      cost: The cost of what runs again, all trips together. An estimate, or None, as `nbytes`.
      choosing: The values by their numbers in the graph, for an option that is made of them.
    """

    choice: Choice | None
    policy: str | None = None
    values: tuple[PlannedValue, ...] = ()
    changed: bool = True
    nbytes: int | None = None
    cost: float | None = None
    choosing: ValueChoice | None = None

    @property
    def names(self) -> int:
        """The number of new names that have to be written."""
        return sum(value.expression is not None for value in self.values)

    @property
    def segments(self) -> tuple[int, ...]:
        """The iterations of each segment that a loop is cut into, by level; else none."""
        return () if self.choice is None else self.choice.segments

    @property
    def checkpoints(self) -> int | None:
        """How many carries a solver's loop keeps; None where it is not one, or as written."""
        return None if self.choice is None else self.choice.checkpoints


# No checkpoint where none is written.
UNTOUCHED = Option(None, changed=False, cost=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """The options of a place.

    Attributes:
      place: The place.
      plain: The option of no checkpoint.
      known: The checkpoint as it is written, and JAX's policies.
      front: The options by name that no other beats in both bytes and cost, from the most bytes to
        none.
      complete: Whether the front holds all such options.
      reduced: A function of an option of the front and of how much more it may cost. It returns the
        option without the new names that save the least cost, or None where leaving out any one
        costs more than that.
      exchanged: A function of an option of values. It returns those that do something else with one
        value, the cheapest by the estimate first; None where nothing may be offloaded.
    """

    place: CheckpointPlace
    plain: Option
    known: tuple[Option, ...]
    front: tuple[Option, ...]
    complete: bool
    reduced: Callable[[Option, float], Option | None] = lambda option, most: None
    exchanged: Callable[[Option], list[Option]] | None = None

    @property
    def options(self) -> tuple[Option, ...]:
        """All options of the place."""
        return (self.plain, *self.known, *self.front)


def menu(
    place: CheckpointPlace,
    graph: Graph | None,
    names: Sequence[str],
    taken: Sequence[str],
    transfer: Callable[[int], float] | None,
    cwd: str,
    step: float = 0.0,
) -> Menu:
    """Return the options of a place.

    Args:
      place: The place.
      graph: The graph of its body; None where there is none, and then JAX's policies are all that
        is offered.
      names: The checkpoint_names in its body.
      taken: All names in the program, which a new one must not repeat.
      transfer: The cost of moving bytes to the host and back; None means that nothing is offloaded.
      cwd: The directory that the files of expressions are relative to.
      step: How finely the front is made, see `solver.Program.front`.
    """
    is_written = place.kind == "checkpoint"
    plain = Option(None, changed=is_written, nbytes=None, cost=0.0)
    known = []
    left_out = {"nothing_saveable"}  # as no policy
    if is_written:
        written = description(place.policy)
        known.append(Option(Choice(place.policy), written, changed=False))
        left_out.add(written or "")
    if not is_written or place.policy is not None:
        known.append(Option(Choice(None)))
    known += [
        Option(Choice(each.policy), each.text)
        for each in (() if place.by_framework else candidates(names))
        if each.text not in left_out and (transfer is not None or "offload" not in each.text)
    ]
    if graph is None:
        return Menu(place, plain, tuple(known), (), False)
    # While the body runs forward the link takes values away; while it runs backward, which takes no
    # less, it brings them back.
    window = 2 * sum(s.cost for s, f in zip(graph.steps, graph.forward, strict=True) if f)
    program = ValueProgram(graph, transfer, window if transfer is not None else 0.0)
    found, complete = program.front(_MOST, step)
    if place.by_framework:
        found, complete = (program.choosing(frozenset(), frozenset()),), True
    front_values = set().union(*(f.saved | f.offloaded for f in found))
    largest = _largest(graph) if transfer is not None else ()
    proposals = _proposals(graph, [*sorted(front_values), *largest], taken, cwd)
    front = tuple(_option(place, graph, choosing, proposals) for choosing in found)

    def reduced(option: Option, most: float) -> Option | None:
        fewer = _reduced(program, graph, option.choosing, most / place.trips)
        return None if fewer is None else _option(place, graph, fewer, proposals)

    def exchanged(option: Option) -> list[Option]:
        made = () if option.choosing is None else _exchanged(program, option.choosing, largest)
        return [_option(place, graph, choosing, proposals) for choosing in made]

    exchange = None if transfer is None or place.by_framework else exchanged
    return Menu(place, plain, tuple(known), front, complete, reduced, exchange)


def offload_options(
    place: CheckpointPlace, graph: Graph, taken: Sequence[str], cwd: str
) -> list[Option]:
    """Return the options that offload one value and save nothing, each alone.

    They are of the largest values, and of the first ones of at least half their size, of which what
    follows can be made again.

    Args:
      place: The place.
      graph: The graph of its body.
      taken: All names in the program.
      cwd: The directory that the files of expressions are relative to.
    """
    largest = _largest(graph)
    if not largest:
        return []
    enough = graph.saveables[largest[0]].nbytes / 2
    first = [c for c, each in enumerate(graph.saveables) if each.nbytes >= enough]
    numbers = list(dict.fromkeys((*first[:_MOST_ALONE], *largest[:_MOST_ALONE])))
    names = _proposals(graph, numbers, taken, cwd)
    program = ValueProgram(graph)
    return [
        _option(place, graph, program.choosing(frozenset(), frozenset({c})), names) for c in numbers
    ]


def _largest(graph: Graph) -> tuple[int, ...]:
    """Return the numbers of the largest values, of which single ones are exchanged."""
    numbers = range(len(graph.saveables))
    return tuple(sorted(numbers, key=lambda c: -graph.saveables[c].nbytes)[:_MOST_EXCHANGED])


def _exchanged(
    program: ValueProgram, choosing: ValueChoice, values: Sequence[int]
) -> list[ValueChoice]:
    """Return the choices that do something else with one of some values, the cheapest first."""
    found = []
    for c in values:
        saved, moved = choosing.saved - {c}, choosing.offloaded - {c}
        for made in ((saved, moved), (saved | {c}, moved), (saved, moved | {c})):
            if made != (choosing.saved, choosing.offloaded):
                found.append(program.choosing(*made))
    return sorted(found, key=lambda choosing: choosing.cost)


def _reduced(
    program: ValueProgram, graph: Graph, choosing: ValueChoice | None, most: float
) -> ValueChoice | None:
    """Return a choice without the unnamed values that save the least cost.

    Values are left out one by one while the cost grows by at most `most`. None where leaving out
    any of them costs more.
    """
    if choosing is None:
        return None
    best, found = choosing, None
    while True:
        fewer = [
            program.choosing(best.saved - {c}, best.offloaded - {c})
            for c in best.saved | best.offloaded
            if graph.saveables[c].name is None
        ]
        least = min(fewer, key=lambda f: f.cost, default=None)
        if least is None or least.cost - choosing.cost > most:
            return found
        best = found = least


def _proposals(
    graph: Graph, numbers: Sequence[int], taken: Sequence[str], cwd: str
) -> dict[int, str]:
    """Return a name for each of some values, by its number in the graph."""
    used = list(taken)
    names: dict[int, str] = {}
    for c in dict.fromkeys(numbers):
        saveable = graph.saveables[c]
        if saveable.name is not None:
            names[c] = saveable.name
        elif saveable.expression is not None:
            names[c] = propose_name(saveable.expression, cwd, used)
            used.append(names[c])
    return names


def _option(
    place: CheckpointPlace, graph: Graph, choosing: ValueChoice, names: dict[int, str]
) -> Option:
    saved, moved = sorted(choosing.saved), sorted(choosing.offloaded)
    made: PolicyCandidate | None = None
    if moved:
        made = offloading([names[c] for c in saved], [names[c] for c in moved])
    elif saved:
        made = saving([names[c] for c in saved])
    new = tuple(
        (expression, names[c])
        for c in (*saved, *moved)
        if (expression := graph.saveables[c].expression) is not None
    )
    values = tuple(
        PlannedValue(
            names[c],
            "save" if c in choosing.saved else "offload",
            graph.saveables[c].nbytes * place.trips,
            graph.saveables[c].expression,
        )
        for c in (*saved, *moved)
    )
    return Option(
        Choice(made.policy if made else None, new),
        made.text if made else None,
        values,
        nbytes=choosing.nbytes * place.trips,
        cost=choosing.cost * place.trips,
        choosing=choosing,
    )
