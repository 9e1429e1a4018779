"""The places where a plan may put checkpoints, and the menus of what to do there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence

from jaxresid import jax_compat
from jaxresid.advice.plan.search.objective import Objective
from jaxresid.advice.plan.search.options import Menu, Option, menu, offload_options
from jaxresid.inspector.jaxpr.frames import is_adapter
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.variants.choices import CheckpointPlace, Variants
from jaxresid.inspector.variants.recompute import Graph, graph

# A value smaller than this share of the budget is not worth a name.
_WORTH_A_NAME = 1e-5
# How finely the front of each of several places is made, as a share of its saveable bytes.
_STEP = 0.01


class Menus:
    """The menus of the places of one function."""

    def __init__(
        self,
        subject: Subject,
        variants: Variants,
        budget_nbytes: int,
        objective: Objective,
        progress: Callable[[str], None],
    ) -> None:
        self._subject, self._variants, self._budget = subject, variants, budget_nbytes
        self._objective, self._progress = objective, progress
        self.places = _places(variants, has_source(subject))
        self._taken_names = _names(variants, self.places)
        self._without_graph: dict[CheckpointPlace, None] = {}

    def of_policies(self) -> list[Menu]:
        """Return the menus with JAX's policies, and the code as it is written."""
        return [self._menu(place, None) for place in self.places]

    def all(self) -> list[Menu]:
        """Return the menus with what can be saved by name as well.

        Values of the whole function are named only where it has no parts.
        """
        return [
            self._menu(
                place,
                self._graph(place) if place.kind != "whole" or len(self.places) == 1 else None,
            )
            for place in self.places
        ]

    def offloads(self, place: CheckpointPlace) -> list[Option]:
        """Return the options of a place that offload one value and save nothing."""
        body_graph = None if place.by_framework else self._graph(place)
        if body_graph is None:
            return []
        return offload_options(place, body_graph, self._taken_names, self._subject.frames.cwd)

    def remarks(self) -> Iterator[str]:
        """Yield warnings about what was left out."""
        for place in self._without_graph:
            yield (
                f"at {place} only JAX's policies were tried: its body cannot be differentiated"
                " by itself, so it is not known which of its values are worth saving"
            )

    def _menu(self, place: CheckpointPlace, body_graph: Graph | None) -> Menu:
        return menu(
            place,
            body_graph,
            _names(self._variants, [place]),
            self._taken_names,
            self._objective.transfer,
            self._subject.frames.cwd,
            _STEP if len(self.places) > 2 else 0.0,
        )

    def _graph(self, place: CheckpointPlace) -> Graph | None:
        """Return the graph of a place's body; None where JAX cannot differentiate it alone."""
        self._progress(f"examining {place}")
        enough = int(self._budget * _WORTH_A_NAME / place.trips)
        body = self._variants.body(place)
        try:
            return graph(body, self._subject.frames, self._objective.of_eqn, enough)
        except Exception:  # whatever JAX's rules raise where they are asked out of their place
            self._without_graph[place] = None
            return None


def has_source(subject: Subject) -> bool:
    """Return whether the target is code that can be edited: no library's, and no adapter's."""
    code = getattr(inspect.unwrap(subject.fun), "__code__", None)
    return code is None or not (
        is_adapter(code) or subject.frames.kind(code.co_filename, code.co_qualname) == "library"
    )


def _places(variants: Variants, has_source: bool) -> list[CheckpointPlace]:
    """Return the places where a plan may put checkpoints.

    They are those where the code has one, loop bodies without one inside, calls of functions, and
    where the target `has_source` everything as one. The whole loss of a step, which is traced again
    for each choice, is not among them where the step has a checkpoint or a scan.
    """
    places = variants.places()
    overlaps = variants.overlaps()
    sites = {p for p in places if p.kind == "checkpoint"}
    holding = {a for a, b in overlaps if b in sites}
    scans = {p for p in places if p.kind == "scan"}
    around_scans = {a for a, b in overlaps if b in scans}
    return [
        p
        for p in places
        if p in sites
        or (p.kind == "whole" and has_source and not (p.defined and (sites or scans)))
        or (p.kind == "scan" and p not in holding and not _is_inside(p, sites, overlaps))
        or (p.kind in ("call", "block") and p not in holding and p not in around_scans)
    ]


def _is_inside(
    place: CheckpointPlace,
    others: set[CheckpointPlace],
    overlaps: Sequence[tuple[CheckpointPlace, CheckpointPlace]],
) -> bool:
    return any(a in others and b is place for a, b in overlaps)


def _names(variants: Variants, places: Sequence[CheckpointPlace]) -> list[str]:
    names = dict.fromkeys(
        str(jax_compat.params(eqn)["name"])
        for place in places
        for eqn in eqns_in(variants.body(place))
        if jax_compat.primitive_name(eqn) == "name"
    )
    return list(names)
