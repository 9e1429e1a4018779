from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Related, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class NameSavedAndOffloaded(Rule):
    """A name is listed both to be saved and to be offloaded.

    ## What it does
    Finds `save_and_offload_only_these_names` with the same literal name in both lists.

    ## Why is this bad?
    The call raises a `ValueError`: a value is kept either on the device or on the host.

    ## Use instead
    List the name only once.

    ## When is this fine?
    Never.
    """

    code = "JXR210"
    name = "name-saved-and-offloaded"
    severity = "error"
    why = "A value is kept on the device or on the host, and the call raises a ValueError."
    help = "leave the name in one of the lists"
    bad = (
        Example(
            """
            import jax


            def policy():
                return jax.checkpoint_policies.save_and_offload_only_these_names(
                    names_which_can_be_saved=["attn", "mlp"],
                    names_which_can_be_offloaded=["out", "attn"],  # !
                    offload_src="device",
                    offload_dst="pinned_host",
                )
            """
        ),
        Example(
            """
            from functools import partial

            from jax.ad_checkpoint import checkpoint_policies as cp

            SAVED = ("attn",)


            def policy(name):
                make = partial(
                    cp.save_and_offload_only_these_names,
                    names_which_can_be_saved=SAVED,
                    names_which_can_be_offloaded={name, "attn"},  # !
                )
                return make(offload_src="device", offload_dst="pinned_host")
            """
        ),
        Example(
            """
            import jax

            BOTH = ["attn"]
            make = jax.checkpoint_policies.save_and_offload_only_these_names


            def policy(src):
                return make(
                    names_which_can_be_saved=BOTH,
                    names_which_can_be_offloaded=BOTH,  # !
                    offload_src=src,
                    offload_dst="pinned_host",
                )
            """
        ),
    )
    good = (
        Example(
            """
            import jax

            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=["attn"],
                names_which_can_be_offloaded=["mlp"],
                offload_src="device",
                offload_dst="pinned_host",
            )
            """
        ),
        Example(
            """
            import jax


            def policy(saved, offloaded):
                return jax.checkpoint_policies.save_and_offload_only_these_names(
                    names_which_can_be_saved=[*saved, "attn"],
                    names_which_can_be_offloaded=offloaded,
                    offload_src="device",
                    offload_dst="pinned_host",
                )
            """
        ),
        Example(
            """
            import jax


            def policy(saved, offloaded):
                return jax.checkpoint_policies.save_and_offload_only_these_names(
                    names_which_can_be_saved=[n for n in saved if n != "attn"],
                    names_which_can_be_offloaded=["attn"],
                    offload_src="device",
                    offload_dst="pinned_host",
                )
            """
        ),
        Example(
            """
            import jax

            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=["attn", "attn"],
                names_which_can_be_offloaded=[],
                offload_src="device",
                offload_dst="pinned_host",
            )
            """
        ),
        Example(
            """
            import jax
            import pytest


            def test_both():
                with pytest.raises(ValueError):
                    jax.checkpoint_policies.save_and_offload_only_these_names(
                        names_which_can_be_saved=["attn"],
                        names_which_can_be_offloaded=["attn"],
                        offload_src="device",
                        offload_dst="pinned_host",
                    )
            """
        ),
        Example(
            """
            from policies import save_and_offload_only_these_names

            policy = save_and_offload_only_these_names(
                names_which_can_be_saved=["attn"], names_which_can_be_offloaded=["attn"]
            )
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for made in policies.made(facts):
            saved = made.keyword("names_which_can_be_saved")
            offloaded = made.keyword("names_which_can_be_offloaded")
            if saved is None or offloaded is None:
                continue
            kept = _names(facts, saved)
            for name, node in _names(facts, offloaded).items():
                if name in kept:
                    inline = _inside(facts, node, made.call)
                    also = Related("saved here", facts.source.path, facts.source.span(kept[name]))
                    yield self.report(
                        facts,
                        node if inline else offloaded,
                        f"`{name}` is listed both to be saved and to be offloaded",
                        related=(also,),
                    )


def _names(facts: Facts, node: ast.expr) -> dict[str, ast.expr]:
    """The literal names in a list, with where they stand."""
    origin = facts.names.definitely(node)
    if not isinstance(origin, (ast.List, ast.Tuple, ast.Set)):
        return {}
    found: dict[str, ast.expr] = {}
    for element in origin.elts:
        value = facts.names.constant(element)
        if isinstance(value, str):
            found.setdefault(value, element)
    return found


def _inside(facts: Facts, node: ast.expr, call: ast.Call) -> bool:
    return any(parent is call for parent in facts.names.ancestors(node))
