"""The rules of functions with `jax.custom_vjp` and `jax.custom_jvp`, as their eqns hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.jax_compat.making import with_params
from jaxresid.jax_compat.reading import params, primitive_name

_RULE = "fwd_jaxpr_thunk"
_TANGENT_RULE = "jvp_jaxpr_fun"


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


def params_with_rule(eqn: Eqn, *, is_differentiated: bool) -> Mapping[str, Any]:
    """Return the params of an eqn, that of a custom_jvp_call with the open jaxpr of its rule.

    JAX has a rule of its own for each eqn. One that is told which tangents are zero, or that holds
    constants, stays as it is.

    Args:
      eqn: the eqn.
      is_differentiated: whether a derivative of it is taken; without, no rule is a param.

    Raises:
      Exception: whatever the rule raises while JAX traces it.
    """
    own = params(eqn)
    if primitive_name(eqn) != "custom_jvp_call" or own["symbolic_zeros"]:
        return own
    if not is_differentiated:
        return {name: value for name, value in own.items() if name != _TANGENT_RULE}
    count = len(eqn.invars) - own["num_consts"]
    jaxpr, constants, _ = own[_TANGENT_RULE].call_wrapped(*[False] * count)
    return own if constants else {**own, _TANGENT_RULE: jaxpr}
