"""Gather what a report says of each line of source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from jaxresid.base.text.layer_paths import folded_scopes, scope_key
from jaxresid.results import Aval, Computed, LiveValue, Location, Report, Residual, Source


@dataclass(frozen=True, slots=True)
class Role:
    """What tells a residual from the others of its line, whatever the line is called.

    Attributes:
      primitive: what computes it.
      name: its `checkpoint_name`, if any.
      aval: its shape, dtype, memory and split.
    """

    primitive: str
    name: str | None
    aval: Aval


@dataclass(frozen=True, slots=True)
class Line:
    """A line of source, or what stands for one where JAX recorded none of the user's.

    Attributes:
      source: one of the sources of its values: all have the same location, or none and the same
        library's function and module.
      scope: their module path, equal for repeated layers.
      modules: their module paths, repeated layers as one.
      roles: how many residuals of each role it keeps.
      live: its values that are live at the estimated peak.
      callers: the functions that call its own on the way from the target, and its own.
    """

    source: Source
    scope: str
    modules: str
    roles: Counter[Role]
    live: tuple[LiveValue, ...]
    callers: frozenset[str]

    @property
    def location(self) -> Location | None:
        """The user's line; None where JAX recorded none."""
        return self.source.location

    @property
    def peak_nbytes(self) -> int:
        """Bytes of its values that are live at the peak."""
        return sum(value.nbytes for value in self.live)


def lines_of(report: Report) -> tuple[Line, ...]:
    """Return the lines that keep something or have something live at the peak, in order."""
    sources: dict[object, Source] = {}
    roles: dict[object, Counter[Role]] = {}
    live: dict[object, list[LiveValue]] = {}
    callers: dict[object, set[str]] = {}
    scopes: dict[object, dict[str, None]] = {}

    def at(source: Source) -> object:
        key = _key(source)
        if key not in sources:
            sources[key], roles[key], live[key], callers[key] = source, Counter(), [], set()
            scopes[key] = {}
        return key

    for residual in report.residuals:
        if isinstance(residual.origin, Computed):
            key = at(residual.origin.source)
            roles[key][_role(residual, residual.origin)] += 1
            scopes[key][residual.origin.scope] = None
            callers[key].update(frame.function for frame in residual.origin.stack)
    for value in report.peak.live if report.peak else ():
        if value.location is not None:
            live[at(value.source)].append(value)
    ordered = sorted(sources, key=lambda key: _order(sources[key]))
    return tuple(
        Line(
            sources[key],
            scope_key(sources[key].scope),
            folded_scopes(scopes[key]) or sources[key].scope,  # that of what is live is folded
            roles[key],
            tuple(live[key]),
            frozenset((*callers[key], *_functions([sources[key].location]))),
        )
        for key in ordered
    )


def nbytes_of(roles: Iterable[tuple[Role, int]], memory: str) -> int:
    """Return the bytes in one memory of residuals, given as roles with their counts."""
    return sum(role.aval.nbytes * count for role, count in roles if role.aval.memory == memory)


def _role(residual: Residual, origin: Computed) -> Role:
    return Role(origin.primitive, origin.name, residual.aval)


def _functions(locations: Iterable[Location | None]) -> set[str]:
    return {each.function for each in locations if each is not None}


def _key(source: Source) -> object:
    if source.location is not None:
        return source.location.file, source.location.line, source.location.function
    library = source.library
    where = None if library is None else (library.file, library.function)
    return where, scope_key(source.scope)


def _order(source: Source) -> tuple[bool, str, int]:
    where = source.location or source.library
    return (source.location is None, where.file if where else "", where.line if where else 0)
