"""Find the checkpoints that offload something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.checkpoints.policies import answers
from jaxresid.inspector.checkpoints.sites import CheckpointSite
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.jax_compat.jaxpr_types import Eqn


@dataclass(frozen=True, slots=True)
class Offer:
    """A checkpoint whose policy offloads something.

    Attributes:
      site: the checkpoint.
      names: the checkpoint_names among the offloaded values.
      primitives: the primitives that make the other offloaded values.
    """

    site: CheckpointSite
    names: tuple[str, ...]
    primitives: frozenset[str] = frozenset()


def offers(sites: Sequence[CheckpointSite]) -> tuple[Offer, ...]:
    """Return the checkpoints that offload; of nested ones the outermost decides."""
    found = []
    for site in sites:
        if site.is_nested:
            continue
        eqns = [eqn for eqn in site.held if not nests(eqn)]
        offered = [eqn for eqn in eqns if answers(site.policy, [eqn], str(site)).offloads]
        if offered:
            names = {str(jax_compat.params(eqn)["name"]) for eqn in offered if _is_name(eqn)}
            primitives = {jax_compat.primitive_name(eqn) for eqn in offered if not _is_name(eqn)}
            found.append(Offer(site, tuple(sorted(names)), frozenset(primitives)))
    return tuple(found)


def _is_name(eqn: Eqn) -> bool:
    return jax_compat.primitive_name(eqn) == "name"
