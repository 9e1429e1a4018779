"""Find the checkpoint that an eqn of the forward pass came from.

Differentiation inlines what a checkpoint saves, so in the forward jaxpr no remat eqn is left, and
since 0.7.1 the frames above the checkpointed function are gone too. The primal jaxpr still has
both. An eqn and its primal twin carry equal frames below the checkpoint; where one function is
checkpointed at several places, their order tells them apart.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.frames import Frame, Frames, Stack, below
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr


@dataclass(frozen=True, slots=True)
class EqnSite:
    """The place of an eqn before it was inlined into its level.

    Attributes:
      labels: the checkpoints around it, `remat` each, and `vmap` around a mapped one.
      frames: the stack of the call that it was inlined from; empty where it is not known.
      jaxpr: the jaxpr that it was inlined from.
      twin: the primal eqn, where it is known.
    """

    labels: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    jaxpr: Jaxpr | None = None
    twin: Any = None


_NONE = EqnSite()
# The id of an eqn's frames, see `Stack.frames`, and the name of its primitive.
_Key = tuple[int, str]


class CallSites:
    """A finder of sites, which matches each pair of forward and primal jaxpr once."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._found: dict[tuple[int, int, tuple[Frame, ...]], dict[int, EqnSite]] = {}

    def find(
        self, primal: Jaxpr | None, forward: Jaxpr, above: tuple[Frame, ...], eqn: Eqn
    ) -> EqnSite:
        """Return the site of an eqn of a forward jaxpr.

        Args:
          primal: the twin of `forward` in the primal jaxpr; None: not known, and so is the site.
          forward: the open jaxpr that holds the eqn.
          above: the frames with which `forward` is called, outermost first.
          eqn: the eqn.
        """
        if primal is None:
            return _NONE
        key = (id(primal), id(forward), above)
        sites = self._found.get(key)
        if sites is None:
            sites = self._found[key] = self._match(primal, forward, above)
        return sites.get(id(eqn), _NONE)

    def _match(self, primal: Jaxpr, forward: Jaxpr, above: tuple[Frame, ...]) -> dict[int, EqnSite]:
        twins: dict[_Key, list[EqnSite]] = defaultdict(list)
        by_frames: dict[int, list[EqnSite]] = defaultdict(list)
        eqns = [
            (e, id(self._frames.of(e).frames), jax_compat.primitive_name(e)) for e in forward.eqns
        ]
        # Of a checkpoint within a checkpoint, the inner one still stands in the forward jaxpr.
        unopened = {self._frames.of(e) for e, _, name in eqns if name == "remat"}
        for site in self._flat(primal, above, _NONE, unopened):
            frames = id(self._frames.of(site.twin).frames)
            twins[frames, jax_compat.primitive_name(site.twin)].append(site)
            by_frames[frames].append(site)
        seen: dict[_Key, Iterator[EqnSite]] = {}
        count: dict[_Key, int] = defaultdict(int)
        for _, frames, name in eqns:
            count[frames, name] += 1
        sites: dict[int, EqnSite] = {}
        latest: dict[int, EqnSite] = {}
        for eqn, frames, name in eqns:
            candidates = twins.get((frames, name), [])
            if len(candidates) == count[frames, name]:
                site = next(seen.setdefault((frames, name), iter(candidates)))
                latest[frames] = site
            elif candidates:
                site = _common(candidates)
            else:  # made by a derivative rule: it stands beside the eqn that it differentiates
                # No frames tell nothing apart.
                beside = latest.get(frames) if self._frames.of(eqn).frames else None
                site = beside or _common(by_frames.get(frames, []))
                site = replace(site, twin=None)
            if site != _NONE:
                sites[id(eqn)] = site
        return sites

    def _flat(
        self,
        jaxpr: Jaxpr,
        above: tuple[Frame, ...],
        around: EqnSite,
        unopened: Set[Stack],
    ) -> Iterator[EqnSite]:
        """Yield the sites of a primal jaxpr's eqns, with those of its checkpoints in their place.

        The checkpoints whose stacks are in `unopened` are not opened.
        """
        for eqn in jaxpr.eqns:
            stack = self._frames.of(eqn)
            if jax_compat.primitive_name(eqn) == "remat" and stack not in unopened:
                frames = around.frames + below(stack, above + around.frames, jaxpr)
                is_mapped = "vmap(" in jax_compat.name_stack(eqn) and "vmap" not in around.labels
                labels = ("vmap", "remat") if is_mapped else ("remat",)
                for nest in nests(eqn):
                    inner = EqnSite(around.labels + labels, frames, nest.jaxpr)
                    yield from self._flat(nest.jaxpr, above, inner, unopened)
            else:
                yield EqnSite(around.labels, around.frames, around.jaxpr, eqn)


def _common(sites: list[EqnSite]) -> EqnSite:
    """Return what holds for all of several sites."""
    if not sites:
        return _NONE
    frames = sites[0].frames
    for site in sites[1:]:
        pairs = zip(frames, site.frames, strict=False)
        frames = tuple(a for a, _ in itertools.takewhile(lambda p: p[0] == p[1], pairs))
    least = min(sites, key=lambda s: len(s.labels))
    return EqnSite(least.labels, frames, least.jaxpr)


def is_inlined(forward: Jaxpr, frames: Frames) -> bool:
    """Return whether an eqn of the outermost forward jaxpr lost the frames that lead to it."""
    return not all(frames.of(eqn).rooted for eqn in forward.eqns)


def contains_remat(jaxpr: Jaxpr) -> bool:
    """Return whether there is a remat eqn anywhere in the jaxpr."""
    return any(jax_compat.primitive_name(eqn) == "remat" for eqn in eqns_in(jaxpr))


def may_hold_checkpoints(jaxpr: Jaxpr, frames: Frames) -> bool:
    """Return whether a forward pass, or a step, shows checkpoints or may have had some.

    jax_remat3 leaves none in a forward pass, nor in a derivative.
    """
    if contains_remat(jaxpr):
        return True
    return jax_compat.flags().get("jax_remat3", False) and is_inlined(jaxpr, frames)
