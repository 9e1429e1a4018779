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
    """Return whether a policy is written as `module:policy`."""
    return ":" in policy and "(" not in policy


def load_policy(reference: str) -> tuple[str, Any]:
    """Return a reference to a policy, `module:policy`, with the policy that it names.

    Raises:
      JaxresidError: There is no such policy.
    """
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


def unknown_policy_error(policy: str, known: Iterable[str]) -> InputsError:
    """Return the error for a name of no policy.

    Args:
      policy: the name.
      known: the names of the policies that there are, besides `none` and `as-written`.
    """
    known = tuple(known)
    named = [name for name in known if "(" in name]
    listed = ", ".join((NONE, WRITTEN, *builtins(), *named[:_LISTED]))
    near = did_you_mean(policy, (NONE, WRITTEN, *known))
    return InputsError(f"no policy {policy!r}{near}; choose one of {listed}, or module:policy")


def chosen_policies(written: Sequence[str]) -> ChosenPolicies:
    """Return the policies that are written as JAX's names or as `module:policy`.

    Raises:
      JaxresidError: There is no such policy.
    """
    return ChosenPolicies(
        tuple(load_policy(each) for each in written if is_reference(each)),
        tuple(dict.fromkeys(canonical_policy(p) for p in written if not is_reference(p))),
    )


def wanted(found: Sequence[PolicyCandidate], names: Sequence[str]) -> Sequence[PolicyCandidate]:
    """Return those of JAX's policies that are named; all where none is.

    Raises:
      InputsError: A name is none of theirs.
    """
    known = {each.text: each for each in found}
    for name in names:
        if name not in (NONE, WRITTEN, *known):
            raise unknown_policy_error(name, known)
    return [known[name] for name in names if name in known] if names else found
