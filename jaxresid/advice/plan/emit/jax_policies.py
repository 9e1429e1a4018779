"""Make JAX's policies from what a plan calls them; nothing in the text is run."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, summary
from jaxresid.linter.resolve.apis import FACTORIES, PLAIN_POLICIES

Policy = Callable[..., Any]
_RECOMPUTES_ALL = "nothing_saveable"


@functools.cache
def jax_policy(text: str | None) -> Policy:
    """Return the policy of `jax.checkpoint_policies` that a text names.

    `save_only_these_names('qkv')` gives what that call returns, the same each time, so that JAX
    finds again what it has traced with it.

    Args:
      text: The policy as a plan has it; None means none, which saves nothing.

    Raises:
      InputsError: It is made of something else than members of `jax.checkpoint_policies`, or the
        installed JAX does not have them or does not take what they are given.
    """
    text = text or _RECOMPUTES_ALL
    try:
        return _policy(ast.parse(text, mode="eval").body, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _foreign(text) from None


def saved_and_offloaded(text: str | None) -> tuple[list[str], list[str]] | None:
    """Return the names that a policy saves and offloads; None where it goes by something else.

    Args:
      text: The policy as a plan has it; None means none, which saves nothing.
    """
    match ast.parse(text or _RECOMPUTES_ALL, mode="eval").body:
        case ast.Name(id="nothing_saveable"):
            return [], []
        case ast.Call(func=ast.Name(id="save_only_these_names"), args=args, keywords=[]):
            return [_string(arg, str(text)) for arg in args], []
        case ast.Call(func=ast.Name(id="save_and_offload_only_these_names"), keywords=keywords):
            given = {k.arg: _argument(k.value, str(text)) for k in keywords}
            return given["names_which_can_be_saved"], given["names_which_can_be_offloaded"]
    return None


def _policy(node: ast.expr, text: str) -> Policy:
    match node:
        case ast.Name(id=name) if name in PLAIN_POLICIES:
            return _member(name)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in FACTORIES:
            positional = [_argument(arg, text) for arg in args]
            named = {str(k.arg): _argument(k.value, text) for k in keywords if k.arg}
            if len(named) == len(keywords):
                return _made(name, positional, named)
    raise _foreign(text)


def _argument(node: ast.expr, text: str) -> Any:
    """Return a string, a list of strings or a policy that a policy is made with."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_string(item, text) for item in items]
    return _policy(node, text)


def _string(node: ast.expr, text: str) -> str:
    match node:
        case ast.Constant(value=str(value)):
            return value
    raise _foreign(text)


def _made(name: str, positional: list[Any], named: dict[str, Any]) -> Policy:
    try:
        made: Policy = _member(name)(*positional, **named)
    except (TypeError, ValueError) as e:
        raise InputsError(f"jax.checkpoint_policies.{name}: {summary(e)}") from e
    return made


def _member(name: str) -> Policy:
    jax = jax_compat.import_jax()
    found: Policy | None = getattr(jax.checkpoint_policies, name, None)
    if found is None:
        raise InputsError(
            f"jax {jax_compat.jax_version()} has no jax.checkpoint_policies.{name}; plan again with"
            " this JAX"
        )
    return found


def _foreign(text: str) -> InputsError:
    return InputsError(
        f"the plan keeps the policy {text:.60}, which is none of jax.checkpoint_policies; use it as"
        " your code has it"
    )
