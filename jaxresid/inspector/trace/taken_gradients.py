"""Find the gradients that a function takes itself, and those inside of them.

A gradient is what is differentiated and then transposed, however it is written: `jax.grad`,
`jax.vjp`, `jax.linearize` and `jax.linear_transpose`, `jax.fwd_and_bwd`, `jax.jacrev`. Forward mode
alone (`jax.jvp`, `jax.jacfwd`) makes none; around a gradient it makes more of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.frames import Frame, Frames
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.inspector.jaxpr.phases import BACKWARD, FORWARD, UPDATE, Passes
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Derivative, Location

# The derivatives around one, outermost first, and that one.
_Path = tuple[jax_compat.Derivative, ...]


@dataclass(frozen=True, slots=True)
class TakenGradient:
    """A gradient that a function takes, or several that are alike.

    Attributes:
      derivative: the derivative that it is.
      function: the name of what is differentiated.
      location: the line that takes it; where that is none of the user's, the first line of what is
        differentiated. None where neither is known.
      outermost: as `location` for the outermost derivative around it, which may be forward mode.
      kinds: what is taken, the outermost derivative first, forward mode too: `grad` or `jvp`.
      trips: how often it is taken.
      path: the gradients around it, outermost first, and its own.
      is_behind: whether it is taken in the backward pass of one around it, by a rule of its own.
      inner: the gradients that what it differentiates takes itself.
    """

    derivative: jax_compat.Derivative
    function: str
    location: Location | None
    outermost: Location | None
    kinds: tuple[str, ...]
    trips: int
    path: _Path
    is_behind: bool = False
    inner: tuple[TakenGradient, ...] = ()


def taken_gradients(jaxpr: Jaxpr, levels: Levels, trips: WhileTrips) -> tuple[TakenGradient, ...]:
    """Return the gradients that an open jaxpr takes, in program order.

    Those that a Python loop takes at one line, and that keep as much, are one.

    Args:
      jaxpr: the open jaxpr, which is not itself differentiated.
      levels: the descent into its eqns.
      trips: the trips of its while loops.
    """
    return _below((), _Counts(levels, trips).of(jaxpr), levels.frames)


def lines_of_gradients(taken: Sequence[TakenGradient]) -> tuple[Derivative, ...]:
    """Return the gradients that a function takes, in the order of the lines that take them.

    Those that one line takes are one. A gradient that another derivative is taken of is part of
    that one: `jvp of grad`.
    """
    of_lines: dict[Location | None, list[tuple[str, ...]]] = {}
    for gradient in taken:
        kinds = of_lines.setdefault(gradient.outermost, [])
        kinds += (each.kinds for each in with_inner((gradient,)))
    return tuple(
        Derivative(" of ".join(_at_depths(kinds)), line) for line, kinds in of_lines.items()
    )


def _at_depths(taken: Sequence[tuple[str, ...]]) -> Iterator[str]:
    for depth in range(max(map(len, taken))):
        yield "grad" if any("grad" in kinds[depth : depth + 1] for kinds in taken) else "jvp"


def in_words(taken: Sequence[Derivative]) -> str:
    """Return which gradients are taken where: `grad at train.py:12`."""
    listed = [
        f"{each.kind} at {each.location.file}:{each.location.line}" if each.location else each.kind
        for each in taken
    ]
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more


def with_inner(taken: Sequence[TakenGradient]) -> Iterator[TakenGradient]:
    """Yield gradients, each followed by those inside of it."""
    for gradient in taken:
        yield gradient
        yield from with_inner(gradient.inner)


def _below(
    around: _Path, counts: Mapping[_Path, _Count], frames: Frames
) -> tuple[TakenGradient, ...]:
    alike: dict[Hashable, TakenGradient] = {}
    for path, count in counts.items():
        # What a loop does not change is computed before it, by forward eqns without a backward one.
        if path[:-1] != around or not count.is_transposed:
            continue
        derivative = path[-1]
        gradient = TakenGradient(
            derivative,
            derivative.function,
            _location(derivative, count.first, frames),
            _location(count.whole[0], count.first, frames),
            tuple("grad" if each.is_transposed else "jvp" for each in count.whole),
            max(count.number, 1),
            path,
            count.is_behind,
            _below(path, counts, frames),
        )
        key = _key(gradient)
        known = alike.get(key)
        alike[key] = gradient if known is None else _together(known, gradient)
    return tuple(alike.values())


def _key(gradient: TakenGradient) -> Hashable:
    inside = tuple(map(_key, gradient.inner))
    return gradient.function, gradient.location, gradient.derivative.kept_nbytes, inside


def _together(one: TakenGradient, other: TakenGradient) -> TakenGradient:
    inside = tuple(_together(a, b) for a, b in zip(one.inner, other.inner, strict=True))
    return replace(one, trips=one.trips + other.trips, inner=inside)


def _location(derivative: jax_compat.Derivative, first: Eqn, frames: Frames) -> Location | None:
    """Return the line that takes a derivative, see `TakenGradient.location`.

    Args:
      derivative: the derivative.
      first: an eqn of it, or of one inside of it.
      frames: reads tracebacks.
    """
    running = []
    for code, lasti in derivative.frames:
        kind = frames.kind(code.co_filename, code.co_qualname)
        if kind == "root":
            break
        if kind in ("user", "library", "jax"):
            running.append(Frame(code, lasti, kind))
    running.reverse()
    return frames.innermost_user(running or frames.of(first).frames)


class GradientPasses(Passes):
    """The passes of the eqns of one gradient; `update` is all that is no part of it.

    Args:
      gradient: the gradient.
      levels: the descent into eqns.
      jaxpr: the open jaxpr of the program.
    """

    def __init__(self, gradient: TakenGradient, levels: Levels, jaxpr: Jaxpr) -> None:
        super().__init__()
        self._path, self._is_behind = gradient.path, gradient.is_behind
        self._levels = levels
        self._owned: dict[int, str | None] = {}
        self._seen: set[tuple[int, int]] = set()
        self._enter(jaxpr, 0)

    def _own(self, eqn: Eqn) -> str | None:
        return self._owned.get(id(eqn), UPDATE)

    def _enter(self, jaxpr: Jaxpr, matched: int) -> None:
        """Tell the passes of the eqns of a jaxpr, inside so many of the derivatives of the path."""
        if (id(jaxpr), matched) in self._seen:
            return
        self._seen.add((id(jaxpr), matched))
        for eqn in jaxpr.eqns:
            phase, inside = self._read(eqn, matched)
            self._owned[id(eqn)] = phase
            if phase is None:
                for nest in self._levels.nests(eqn):
                    self._enter(nest.jaxpr, inside)

    def _read(self, eqn: Eqn, matched: int) -> tuple[str | None, int]:
        for derivative, is_transposed in _gradients(eqn):
            if derivative in self._path[:matched]:
                continue
            if derivative is not self._path[matched]:
                return UPDATE, matched
            matched += 1
            if matched == len(self._path):
                return (BACKWARD if is_transposed else FORWARD), matched
            if is_transposed and not self._is_behind:
                return UPDATE, matched
        return None, matched


@dataclass(frozen=True, slots=True)
class _Count:
    """How often a gradient is taken.

    Attributes:
      number: how often.
      is_transposed: whether its backward pass is there.
      is_behind: whether it is only in the backward pass of one around it.
      whole: the derivatives around and inside of it, and its own, forward mode too.
      first: its first eqn.
    """

    number: int
    is_transposed: bool
    is_behind: bool
    whole: _Path
    first: Eqn

    def __add__(self, other: _Count) -> _Count:
        made = replace(
            self,
            is_transposed=self.is_transposed or other.is_transposed,
            whole=max(self.whole, other.whole, key=len),
        )
        if self.is_behind == other.is_behind:
            return replace(made, number=self.number + other.number)
        ahead = other if self.is_behind else self
        return replace(made, number=ahead.number, is_behind=ahead.is_behind)

    def or_most(self, other: _Count) -> _Count:
        """Return the count of two branches, one of which runs."""
        together = self + other
        return replace(together, number=min(together.number, max(self.number, other.number)))


class _Counts:
    """How often gradients are taken in jaxprs, by the derivatives around them."""

    def __init__(self, levels: Levels, trips: WhileTrips) -> None:
        self._levels = levels
        self._trips = trips
        self._of: dict[int, dict[_Path, _Count]] = {}

    def of(self, jaxpr: Jaxpr) -> dict[_Path, _Count]:
        """Return how often each is taken in a jaxpr; 0 where only its backward pass is there."""
        known = self._of.get(id(jaxpr))
        if known is None:
            known = self._of[id(jaxpr)] = self._found(jaxpr)
        return known

    def _found(self, jaxpr: Jaxpr) -> dict[_Path, _Count]:
        counts: dict[_Path, _Count] = {}
        begun: set[_Path] = set()
        # A backward pass makes constants of its own that are tagged as the forward pass is.
        given: set[Var] = {*jaxpr.constvars, *jaxpr.invars}
        for eqn in jaxpr.eqns:
            reads = any(not jax_compat.is_literal(v) and v in given for v in eqn.invars)
            if reads:
                given.update(eqn.outvars)
            path: _Path = ()
            whole: _Path = ()
            is_behind = False
            for derivative, is_transposed in jax_compat.derivatives(eqn):
                if derivative in whole:
                    continue  # the backward pass of a checkpoint begins with its forward pass
                whole = (*whole, derivative)
                if not derivative.is_transposed:
                    if path:
                        _add(counts, path, _Count(0, False, is_behind, whole, eqn))
                    continue
                path = (*path, derivative)
                begins = reads and not is_transposed and not is_behind and path not in begun
                if begins:
                    begun.add(path)
                _add(counts, path, _Count(int(begins), is_transposed, is_behind, whole, eqn))
                is_behind = is_behind or is_transposed
            for inner, count in self._inside(eqn, path).items():
                around = (*whole, *(each for each in count.whole if each not in whole))
                is_inner = is_behind or count.is_behind
                _add(counts, inner, replace(count, is_behind=is_inner, whole=around))
        return counts

    def _inside(self, eqn: Eqn, path: _Path) -> dict[_Path, _Count]:
        """Return how often each is taken in the bodies of an eqn; of branches, at most."""
        most: dict[_Path, _Count] = {}
        for nest in self._levels.nests(eqn):
            for inner, count in self.of(nest.jaxpr).items():
                whole = (*path, *(derivative for derivative in inner if derivative not in path))
                if whole != path:
                    times = replace(count, number=count.number * self._runs(eqn, nest))
                    most[whole] = times.or_most(most[whole]) if whole in most else times
        return most

    def _runs(self, eqn: Eqn, nest: Nest) -> int:
        if nest.kind != "while":
            return nest.length or 1
        trips = self._trips.of(eqn)
        return 1 if trips is None else trips.count


def _add(counts: dict[_Path, _Count], path: _Path, count: _Count) -> None:
    counts[path] = counts[path] + count if path in counts else count


def _gradients(eqn: Eqn) -> list[tuple[jax_compat.Derivative, bool]]:
    """Return the derivatives of an eqn that have a backward pass, see `jax_compat.derivatives`."""
    return [found for found in jax_compat.derivatives(eqn) if found[0].is_transposed]
