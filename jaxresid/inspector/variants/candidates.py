"""List the policies that a comparison tries: JAX's own, and those that use the function's names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.checkpoints.policies import builtins

# Of so many names each subset is tried; of more each alone, all but each, and all.
_SUBSETS_UP_TO = 4


@dataclass(frozen=True, slots=True)
class PolicyCandidate:
    """A policy, and how it is written after `jax.checkpoint_policies.`."""

    text: str
    policy: Any


def candidates(names: Sequence[str]) -> tuple[PolicyCandidate, ...]:
    """Return the policies that a comparison tries.

    These are JAX's policies without parameters, then for the names in a function those that save
    some of them, those that save names and dots, and those that offload.
    """
    listed = [PolicyCandidate(name, policy) for name, policy in builtins().items()]
    listed += [saving(chosen) for chosen in _subsets(names)]
    if names:
        listed.append(_names_and_dots(names))
    listed += _offloading(names)
    return tuple(listed)


def saving(names: Sequence[str]) -> PolicyCandidate:
    policies = jax_compat.import_jax().checkpoint_policies
    listed = ", ".join(map(repr, names))
    return PolicyCandidate(
        f"save_only_these_names({listed})", policies.save_only_these_names(*names)
    )


def offloading(saved: Sequence[str], offloaded: Sequence[str]) -> PolicyCandidate:
    """Return `save_and_offload_only_these_names` of some names, to pinned host memory."""
    policies = jax_compat.import_jax().checkpoint_policies
    options = {
        "names_which_can_be_saved": list(saved),
        "names_which_can_be_offloaded": list(offloaded),
        "offload_src": "device",
        "offload_dst": "pinned_host",
    }
    listed = ", ".join(f"{key}={value!r}" for key, value in options.items())
    policy = policies.save_and_offload_only_these_names(**options)
    return PolicyCandidate(f"save_and_offload_only_these_names({listed})", policy)


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    if len(names) <= _SUBSETS_UP_TO:
        for size in range(1, len(names) + 1):
            yield from itertools.combinations(names, size)
        return
    yield from ((name,) for name in names)
    for left_out in names:
        yield tuple(name for name in names if name != left_out)
    yield tuple(names)


def _names_and_dots(names: Sequence[str]) -> PolicyCandidate:
    policies = jax_compat.import_jax().checkpoint_policies
    named = saving(names)
    dots = "dots_with_no_batch_dims_saveable"
    return PolicyCandidate(
        f"save_from_both_policies({dots}, {named.text})",
        policies.save_from_both_policies(getattr(policies, dots), named.policy),
    )


def _offloading(names: Sequence[str]) -> Iterator[PolicyCandidate]:
    policies = jax_compat.import_jax().checkpoint_policies
    yield PolicyCandidate(
        "offload_dot_with_no_batch_dims('device', 'pinned_host')",
        policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
    )
    if len(names) > 1:
        for name in names:
            yield offloading([n for n in names if n != name], [name])
    if names:
        yield offloading([], names)
