"""Define the options that say which policies are tried, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxresid.cli.completion import values
from jaxresid.cli.help import option


def policy_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --policy; the command receives `policies`."""
    return option(
        "--policy",
        "policies",
        multiple=True,
        shell_complete=values.policies,
        metavar="POLICY",
        help="A policy to try: none, as-written, a name in jax.checkpoint_policies, or"
        f" module:policy. Repeat for more.  [default: {default}]",
    )


def at_option(more: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --at."""
    return option(
        "--at",
        metavar="PLACE",
        help="Where to apply the policies: all-sites (the checkpoints in the code), scan-bodies,"
        f" calls, whole, or a place such as model.py:42.{more}  [default: the first of these that"
        " matters]",
    )
