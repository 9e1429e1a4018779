"""The forward rules of functions with `jax.custom_vjp`, as their eqns hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxresid.jax_compat.making import with_params
from jaxresid.jax_compat.reading import params
from jaxresid.jaxpr_types import Eqn, Jaxpr

_RULE = "fwd_jaxpr_thunk"


def forward_rule(eqn: Eqn) -> Jaxpr:
    """Return the open jaxpr of the forward rule of a custom_vjp_call eqn.

    It returns residuals, those among them aside that are inputs, and then the results.

    Raises:
      Exception: whatever the rule raises while JAX traces it.
    """
    made: tuple[Jaxpr, Any] = params(eqn)[_RULE].call_wrapped(*[True] * len(eqn.invars))
    return made[0]


def with_forward_rule(eqn: Eqn, change: Callable[[Jaxpr], Jaxpr]) -> Eqn:
    """Return a custom_vjp_call eqn whose forward rule is a changed one.

    Args:
      eqn: the eqn.
      change: returns an open jaxpr of the same inputs and outputs.
    """
    from jax._src import linear_util

    rule = params(eqn)[_RULE]

    def changed(*are_perturbed: bool) -> tuple[Jaxpr, Any]:
        jaxpr, constants = rule.call_wrapped(*are_perturbed)
        return change(jaxpr), constants

    return with_params(eqn, {_RULE: linear_util.wrap_init(changed, debug_info=rule.debug_info)})
