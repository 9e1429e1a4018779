"""Which checkpoint an eqn of the forward pass came from.

Differentiation inlines what a checkpoint saves, so in the forward jaxpr no remat eqn is left, and
since 0.7.1 the frames above the checkpointed function are gone too. Both still stand in the primal
jaxpr. An eqn and its primal twin carry equal frames below the checkpoint; where one function is
checkpointed at several places, their order tells them apart.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxresid.inspector import _jax
from jaxresid.inspector.frames import Frame, Frames
from jaxresid.inspector.nesting import nests


@dataclass(frozen=True, slots=True)
class Site:
    """The checkpoints around an eqn, within its level.

    Attributes:
      depth: how many checkpoints.
      frames: the stack of the innermost one's call; empty where it cannot be told.
      twin: the primal eqn, where it can be told.
    """

    depth: int = 0
    frames: tuple[Frame, ...] = ()
    twin: Any = None


_NONE = Site()
_Key = tuple[tuple[Frame, ...], str]


class CallSites:
    """Finds sites level by level, each pair of forward and primal jaxpr once."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._found: dict[tuple[int, int], dict[int, Site]] = {}

    def find(self, primal: Any, forward: Any, eqn: Any) -> Site:
        """The site of an eqn of `forward`, whose place in the primal jaxpr is `primal`."""
        if primal is None:
            return _NONE
        key = (id(primal), id(forward))
        sites = self._found.get(key)
        if sites is None:
            sites = self._found[key] = self._match(primal, forward)
        return sites.get(id(eqn), _NONE)

    def _match(self, primal: Any, forward: Any) -> dict[int, Site]:
        twins: dict[_Key, list[Site]] = defaultdict(list)
        by_frames: dict[tuple[Frame, ...], list[Site]] = defaultdict(list)
        for site in self._flat(primal, _NONE):
            frames = self._frames.of(site.twin).frames
            twins[frames, _jax.primitive_name(site.twin)].append(site)
            by_frames[frames].append(site)
        eqns = [(e, self._frames.of(e).frames, _jax.primitive_name(e)) for e in forward.eqns]
        seen: dict[_Key, Iterator[Site]] = {}
        count: dict[_Key, int] = defaultdict(int)
        for _, frames, name in eqns:
            count[frames, name] += 1
        sites: dict[int, Site] = {}
        latest: dict[tuple[Frame, ...], Site] = {}
        for eqn, frames, name in eqns:
            candidates = twins.get((frames, name), [])
            if len(candidates) == count[frames, name]:
                site = next(seen.setdefault((frames, name), iter(candidates)))
                latest[frames] = site
            elif candidates:
                site = _common(candidates)
            else:  # made by a derivative rule: it stands beside the eqn that it differentiates
                site = latest.get(frames) or _common(by_frames.get(frames, []))
                site = Site(site.depth, site.frames)
            if site is not _NONE:
                sites[id(eqn)] = site
        return sites

    def _flat(self, jaxpr: Any, around: Site) -> Iterator[Site]:
        """The eqns of a primal jaxpr with those of its checkpoints in place."""
        for eqn in jaxpr.eqns:
            if _jax.primitive_name(eqn) == "remat":
                frames = around.frames + self._frames.of(eqn).frames
                inner = Site(around.depth + 1, frames)
                for nest in nests(eqn):
                    yield from self._flat(nest.jaxpr, inner)
            else:
                yield Site(around.depth, around.frames, eqn)


def _common(sites: list[Site]) -> Site:
    """What holds for all of several sites."""
    if not sites:
        return _NONE
    frames = sites[0].frames
    for site in sites[1:]:
        pairs = zip(frames, site.frames, strict=False)
        frames = tuple(a for a, _ in itertools.takewhile(lambda p: p[0] == p[1], pairs))
    return Site(min(s.depth for s in sites), frames)


def contains_remat(jaxpr: Any) -> bool:
    """Whether a remat eqn stands anywhere in the jaxpr."""
    seen: set[int] = set()
    stack = [jaxpr]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for eqn in current.eqns:
            if _jax.primitive_name(eqn) == "remat":
                return True
            stack += [nest.jaxpr for nest in nests(eqn)]
    return False
