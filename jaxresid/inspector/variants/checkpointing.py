"""Make the eqns of checkpoints: around eqns, around the body of a scan, with another policy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.alike import structural_key as alike
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.rewrite import Regroup, Replace
from jaxresid.inspector.variants.choices import (
    Choice,
)
from jaxresid.inspector.variants.cutting import cut, with_folded_numbers_as_inputs
from jaxresid.inspector.variants.groups import Stretched
from jaxresid.inspector.variants.naming import named
from jaxresid.inspector.variants.nesting import nested_eqn
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr


def key_of(choice: Choice) -> Hashable:
    """Policies may have no hash."""
    return id(choice.policy), choice.names, choice.segments


class Checkpointing:
    """A maker of remat eqns.

    Equal choices are one object, bodies that are one object stay one, and those alike become one.

    Args:
      shares: whether the bodies of checkpoints that are there become one, too. Layers of a loss are
        left out instead.
    """

    def __init__(self, frames: Frames, *, shares: bool) -> None:
        self._frames, self._shares = frames, shares
        self._made: dict[Hashable, Jaxpr] = {}
        self._bodies: dict[Hashable, Jaxpr] = {}
        self._replaces: dict[Hashable, Replace] = {}

    def remat(self, choice: Choice) -> Replace:
        return self._replaces.setdefault(("remat", key_of(choice)), self._remat(choice))

    def loop(self, choice: Choice) -> Replace:
        return self._replaces.setdefault(("loop", key_of(choice)), self._loop(choice))

    def nest(self, choice: Choice) -> Replace:
        def replace(eqn: Eqn) -> Eqn:
            held = jax_compat.params(eqn)["jaxpr"]
            body = self.named(jax_compat.open_jaxpr(held), choice)
            nested = jax_compat.with_params(eqn, {"jaxpr": jax_compat.with_jaxpr(held, body)})
            return nested_eqn(nested, choice.segments, choice.policy)

        return self._replaces.setdefault(("nest", key_of(choice)), replace)

    def _remat(self, choice: Choice) -> Replace:
        def replace(eqn: Eqn) -> Eqn:
            remat = self.shared(eqn)
            held = jax_compat.params(remat)["jaxpr"]
            body = self.named(jax_compat.open_jaxpr(held), choice)
            return jax_compat.with_params(
                remat, {"policy": choice.policy, "jaxpr": jax_compat.with_jaxpr(held, body)}
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
                ("loop", key_of(choice)),
                jax_compat.open_jaxpr(held),
                lambda body: self.wrapped(body, choice, prevent_cse=False),
            )
            return jax_compat.with_params(eqn, {"jaxpr": jax_compat.with_jaxpr(held, body)})

        return replace

    def wrapped(self, jaxpr: Jaxpr, choice: Choice, *, prevent_cse: bool) -> Jaxpr:
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
        if not eqns:
            return ()
        own = cut(jaxpr, start, stop, eqns)
        inside, numbers = with_folded_numbers_as_inputs(own)
        body = self._bodies.setdefault(alike.key(inside), inside)
        remat = jax_compat.as_remat(
            self.named(body, choice), [*own.invars, *numbers], own.outvars, eqns[0]
        )
        return (
            jax_compat.with_params(remat, {"policy": choice.policy, "prevent_cse": prevent_cse}),
        )

    def named(self, body: Jaxpr, choice: Choice) -> Jaxpr:
        if not choice.names:
            return body
        return self._cached(
            ("named", choice.names), body, lambda body: named(body, choice.names, self._frames)
        )

    def _cached(self, key: Hashable, body: Jaxpr, make: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
        if (key, body) not in self._made:
            self._made[key, body] = make(body)
        return self._made[key, body]


def regroup(jaxpr: Jaxpr, cuts: Sequence[Stretched], remake: Checkpointing) -> Regroup:
    """Return a function that puts stretches of a jaxpr's eqns into checkpoints.

    One stretch may be inside another.
    """

    def around(
        eqns: Sequence[Eqn], start: int, stop: int, within: Sequence[Stretched]
    ) -> list[Eqn]:
        grouped: list[Eqn] = []
        at, left = start, list(within)
        while left:
            first, last, choice = left.pop(0)
            inner = [stretch for stretch in left if stretch[1] <= last]
            left = left[len(inner) :]
            grouped += eqns[at:first]
            grouped += remake.around(jaxpr, first, last, around(eqns, first, last, inner), choice)
            at = last
        return [*grouped, *eqns[at:stop]]

    in_order = sorted(cuts, key=lambda each: (each[0], -each[1]))
    return lambda eqns: around(eqns, 0, len(eqns), in_order)
