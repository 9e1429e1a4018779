"""Find what a jaxpr repeats, layer after layer, and leave out all but a few of the layers.

What repeats are stretches of eqns, alike but for their variables: each reads what the one before it
made, inputs of its own (its weights) and what all of them read. Their lines of code may differ.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.alike import structural_key
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

# How many layers of a run are kept at its beginning and at its end.
BEFORE, AFTER = 3, 3
# The last of those that are kept.
LAST = BEFORE + AFTER - 1
# Fewer layers than these that could be left out are not worth it.
_WORTH_IT = 3
# How many distances between equal eqns are looked at as the length of a layer.
_LENGTHS = 6

_LABEL = re.compile(r"layer<(\d+)\.(\d+)>")

# The numbers of a run and of a layer that is kept in it.
Layer = tuple[int, int]

_Pattern = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Layers of which some are left out.

    Attributes:
      number: the number of the run, which the labels of its eqns have.
      omitted: how many layers are left out.
      inputs: for each layer that is kept, the numbers of the shortened jaxpr's invars that are its
        own, in the same order for each.
    """

    number: int
    omitted: int
    inputs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Shortened:
    """A jaxpr with layers left out.

    Attributes:
      jaxpr: the open jaxpr; the eqns of the layers have a label in their name stacks, see `label`.
      invars: the numbers of the invars that it has of the whole one.
      runs: what was left out, in program order.
    """

    jaxpr: Jaxpr
    invars: tuple[int, ...]
    runs: tuple[Run, ...]


def label(run: int, layer: int) -> str:
    """Return what the name stacks of a layer's eqns hold."""
    return f"layer<{run}.{layer}>"


def has_layer(tags: str) -> bool:
    """Return whether name stacks have the label of a layer."""
    return _LABEL.search(tags) is not None


def layers_of(tags: Iterable[str]) -> list[Layer | None]:
    """Return the run and the layer of each of some operations, by their name stacks.

    What JAX adds between them, such as the sum of two cotangents, has no label; it belongs to the
    layer of what is before it. None for what is before all layers.
    """
    found: list[Layer | None] = []
    last: Layer | None = None
    for each in tags:
        label = _LABEL.search(each)
        last = last if label is None else (int(label[1]), int(label[2]))
        found.append(last)
    return found


def shortened(jaxpr: Jaxpr) -> Shortened | None:
    """Return an open jaxpr with layers left out of its runs; None where it has no long run."""
    stretches = periodic(_keys(jaxpr), BEFORE + AFTER + _WORTH_IT)
    found = [run for each in stretches if (run := _checked(jaxpr, each)) is not None]
    if not found:
        return None
    return _without(jaxpr, sorted(found, key=lambda run: run.start))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Eqns that are alike: `count` layers of `length` eqns each, from eqn `start` on.

    `own` are for each layer the inputs that it alone reads.
    """

    start: int
    length: int
    count: int
    own: tuple[tuple[Var, ...], ...] = ()

    @property
    def stop(self) -> int:
        """The number behind that of the last eqn."""
        return self.start + self.length * self.count


def _keys(jaxpr: Jaxpr) -> list[int]:
    """Return for each eqn a number that equal ones share, whatever variables they read."""
    numbers: dict[Hashable, int] = {}
    bodies: dict[int, Hashable] = {}

    def operand(v: Var) -> Hashable:
        if jax_compat.is_literal(v):
            return structural_key.of_literal(v)
        return structural_key.hashable(v.aval)

    def param(value: object) -> Hashable:
        if not jax_compat.is_jaxpr(value):
            return structural_key.hashable(value)
        opened = jax_compat.open_jaxpr(value)
        if id(opened) not in bodies:
            bodies[id(opened)] = structural_key.key(opened)
        return bodies[id(opened)]

    found = []
    for eqn in jaxpr.eqns:
        key = (
            eqn.primitive,
            tuple(map(operand, eqn.invars)),
            tuple(v.aval for v in eqn.outvars),
            tuple((name, param(value)) for name, value in eqn.params.items()),
            frozenset(eqn.effects),
            structural_key.hashable(eqn.ctx),
        )
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def periodic(keys: Sequence[int], least: int, *, latest: bool = False) -> list[Stretch]:
    """Return the longest stretches of equal eqns, one after another, that do not overlap.

    Args:
      keys: for each eqn a number that equal ones share.
      least: how many layers a stretch has at least.
      latest: whether layers that may begin at several eqns do so at the last of these.
    """
    found: list[Stretch] = []
    ranges = [(0, len(keys))]
    while ranges:
        start, stop = ranges.pop()
        best = _longest(keys, start, stop, least, latest=latest)
        if best is None:
            continue
        found.append(best)
        ranges += [(start, best.start), (best.stop, stop)]
    return found


def _longest(
    keys: Sequence[int], start: int, stop: int, least: int, *, latest: bool
) -> Stretch | None:
    if stop - start < least:
        return None
    last: dict[int, int] = {}
    gaps = Counter[int]()
    for i in range(start, stop):
        before = last.get(keys[i])
        if before is not None:
            gaps[i - before] += 1
        last[keys[i]] = i
    best: Stretch | None = None
    for length, _ in sorted(gaps.most_common(_LENGTHS)):
        at = start
        for i in range(start, stop - length + 1):
            if i < stop - length and keys[i] == keys[i + length]:
                continue
            count = (i - at) // length + 1
            if count >= least and (
                best is None or count * length > best.count * best.length + best.length
            ):
                best = Stretch(at + (i - at) % length if latest else at, length, count)
            at = i + 1
    return best


def _checked(jaxpr: Jaxpr, stretch: Stretch) -> Stretch | None:
    """Return those layers of a stretch whose eqns read alike, with their own inputs; or None."""
    makers = {v: (i, out) for i, eqn in enumerate(jaxpr.eqns) for out, v in enumerate(eqn.outvars)}
    start, length = stretch.start, stretch.length

    def pattern(layer: int) -> tuple[_Pattern, tuple[Var, ...]]:
        """Return what a layer reads of its own and of the layer before, and what else it reads."""
        reads: list[Hashable] = []
        others: dict[Var, int] = {}
        first = start + layer * length
        for eqn in jaxpr.eqns[first : first + length]:
            for v in eqn.invars:
                if jax_compat.is_literal(v):
                    reads.append(None)
                    continue
                at, out = makers.get(v, (-1, 0))
                if first - length <= at and start <= at:
                    reads.append((at - first, out))
                else:
                    reads.append(others.setdefault(v, len(others)))
        return tuple(reads), tuple(others)

    each = [pattern(layer) for layer in range(stretch.count)]
    best = (0, 0)
    at = 0
    for layer in range(1, stretch.count + 1):
        if layer < stretch.count and each[layer][0] == each[at][0]:
            continue
        best = max(best, (layer - at, -at))
        at = layer
    count, first = best[0], -best[1]
    if count < BEFORE + AFTER + _WORTH_IT:
        return None
    kept = each[first : first + count]
    inputs = set(jaxpr.invars)
    own: list[int] = []
    for i, v in enumerate(kept[0][1]):
        read = {others[i] for _, others in kept}
        if len(read) == 1:
            if makers.get(v, (-1, 0))[0] >= start:
                return None  # what the layers before these made
        elif len(read) == count and read <= inputs:
            own.append(i)
        else:
            return None
    made = Stretch(
        start + first * length,
        length,
        count,
        tuple(tuple(others[i] for i in own) for _, others in kept),
    )
    return made if _is_apart(jaxpr, made) else None


def _is_apart(jaxpr: Jaxpr, run: Stretch) -> bool:
    """Return whether the rest of a jaxpr reads the last layer alone, and no layer's own inputs."""
    inner = run.start, run.stop - run.length
    hidden = {v for eqn in jaxpr.eqns[slice(*inner)] for v in eqn.outvars}
    hidden.update(v for layer in run.own for v in layer)
    outside = (*jaxpr.eqns[: run.start], *jaxpr.eqns[run.stop :])
    read = [v for eqn in outside for v in eqn.invars] + list(jaxpr.outvars)
    return hidden.isdisjoint(v for v in read if not jax_compat.is_literal(v))


def _without(jaxpr: Jaxpr, runs: Sequence[Stretch]) -> Shortened:
    eqns: list[Eqn] = []
    dropped: set[Var] = set()
    at = 0
    for number, run in enumerate(runs):
        eqns += jaxpr.eqns[at : run.start]
        length = run.length
        end = run.start + BEFORE * length
        again = run.stop - AFTER * length
        renamed = {
            old: new
            for before, behind in zip(
                jaxpr.eqns[end - length : end], jaxpr.eqns[again - length : again], strict=True
            )
            for new, old in zip(before.outvars, behind.outvars, strict=True)
        }
        for i in (*range(run.start, end), *range(again, run.stop)):
            layer = (i - run.start) // length
            kept = layer if i < end else layer - run.count + BEFORE + AFTER
            eqn = jaxpr.eqns[i]
            if again <= i < again + length:
                reads = [v if jax_compat.is_literal(v) else renamed.get(v, v) for v in eqn.invars]
                eqn = eqn.replace(invars=reads)
            eqns.append(jax_compat.with_label(eqn, label(number, kept)))
        dropped.update(v for own in run.own[BEFORE:-AFTER] for v in own)
        at = run.stop
    eqns += jaxpr.eqns[at:]
    kept_invars = tuple(i for i, v in enumerate(jaxpr.invars) if v not in dropped)
    numbers = {jaxpr.invars[i]: n for n, i in enumerate(kept_invars)}
    return Shortened(
        jax_compat.with_eqns(jaxpr, [jaxpr.invars[i] for i in kept_invars], eqns),
        kept_invars,
        tuple(
            Run(
                number,
                run.count - BEFORE - AFTER,
                tuple(
                    tuple(numbers[v] for v in own) for own in (*run.own[:BEFORE], *run.own[-AFTER:])
                ),
            )
            for number, run in enumerate(runs)
        ),
    )
