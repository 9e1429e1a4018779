"""Read policies as users write them: a name of JAX's, or `module:policy`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.inspector.checkpoints.policies import builtins, description
from jaxresid.inspector.variants.candidates import PolicyCandidate
from jaxresid.targets.targets import load

NONE, WRITTEN = "none", "as-written"
# How many policies of the function's own names a message lists.
_LISTED = 4


@dataclass(frozen=True, slots=True)
class ChosenPolicies:
    """The policies of a comparison, besides none and those as written.

    Attributes:
      own: Policies of the user's, each with the name that it is shown by.
      names: Which of JAX's, as a comparison prints them; empty means all.
    """

    own: tuple[tuple[str, Any], ...] = ()
    names: tuple[str, ...] = ()


def is_reference(policy: str) -> bool:
    return ":" in policy and "(" not in policy


def load_policy(reference: str) -> tuple[str, Any]:
    return reference, load(reference).fun


def canonical_policy(policy: str) -> str:
    """Return the name of a policy as a comparison prints it; JAX has two names for some.

    Raises:
      InputsError: There is no policy of that name.
    """
    if policy in (NONE, WRITTEN) or ":" in policy or "(" in policy:
        return policy
    value = getattr(jax_compat.import_jax().checkpoint_policies, policy, None)
    name = description(value) if callable(value) else None
    if name not in builtins():
        raise unknown_policy_error(policy, builtins())
    return name


def unknown_policy_error(policy: str, names: Iterable[str]) -> InputsError:
    """Return the error for a name of no policy.

    Args:
      names: the names of the policies that there are, besides `none` and `as-written`.
    """
    names = tuple(names)
    named = [name for name in names if "(" in name]
    listed = ", ".join((NONE, WRITTEN, *builtins(), *named[:_LISTED]))
    near = did_you_mean(policy, (NONE, WRITTEN, *names))
    return InputsError(f"no policy {policy!r}{near}; choose one of {listed}, or module:policy")


def chosen_policies(written: Sequence[str]) -> ChosenPolicies:
    return ChosenPolicies(
        tuple(load_policy(policy) for policy in written if is_reference(policy)),
        tuple(dict.fromkeys(canonical_policy(p) for p in written if not is_reference(p))),
    )


def wanted(policies: Sequence[PolicyCandidate], names: Sequence[str]) -> Sequence[PolicyCandidate]:
    by_text = {policy.text: policy for policy in policies}
    for name in names:
        if name not in (NONE, WRITTEN, *by_text):
            raise unknown_policy_error(name, by_text)
    return [by_text[name] for name in names if name in by_text] if names else policies
