from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import apis
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_PARAMETERS = frozenset({"policy_1", "policy_2"})
# Since jax 0.12 a union with one of these is the other one, or this one, without asking further.
_TRIVIAL = frozenset({"nothing_saveable", "everything_saveable"})


class UnionWithOffloadPolicy(Rule):
    """`save_from_both_policies` is given policies that it cannot combine.

    ## What it does
    Finds `save_from_both_policies` with a policy that offloads, or with other than two policies.

    ## Why is this bad?
    A policy that offloads does not answer with a bool, and the union raises a `ValueError` once it
    is differentiated. With one policy or three the call itself raises.

    ## Use instead
    `save_and_offload_only_these_names` with the names to save and those to offload; for three
    policies, the union of a union.

    ## When is this fine?
    Since jax 0.12 the union with `nothing_saveable` is the other policy; that is not reported.
    """

    code = "JXR209"
    name = "union-with-offload-policy"
    severity = "error"
    why = "The union needs a bool from both policies, and one that offloads does not return it."
    help = "list the names to save and to offload in one save_and_offload_only_these_names"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name

            cp = jax.checkpoint_policies


            def layer(w, x):
                return jnp.cos(checkpoint_name(jnp.sin(x @ w), "hidden")).sum()


            policy = cp.save_from_both_policies(
                cp.dots_saveable,
                cp.save_and_offload_only_these_names(  # !
                    names_which_can_be_saved=[],
                    names_which_can_be_offloaded=["hidden"],
                    offload_src="device",
                    offload_dst="pinned_host",
                ),
            )
            block = jax.checkpoint(layer, policy=policy)
            """
        ),
        Example(
            """
            from jax import remat as ckpt
            from jax.ad_checkpoint import checkpoint_policies

            both = checkpoint_policies.save_from_both_policies
            offload = checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")


            def run(layer, w, x):
                named = checkpoint_policies.save_only_these_names("hidden")
                return ckpt(layer, policy=both(policy_1=offload, policy_2=named))(w, x)  # !
            """
        ),
        Example(
            """
            import jax


            def three():
                cp = jax.checkpoint_policies
                return cp.save_from_both_policies(  # !
                    cp.dots_saveable, cp.save_only_these_names("a"), cp.save_only_these_names("b")
                )
            """
        ),
        Example(
            """
            import functools

            import jax


            def run(layer):
                cp = jax.checkpoint_policies
                wrap = functools.partial(jax.checkpoint, policy=cp.save_from_both_policies([cp.dots_saveable]))  # !
                return wrap(layer)
            """
        ),
        Example(
            """
            import jax

            cp = jax.checkpoint_policies
            offload = cp.offload_dot_with_no_batch_dims("device", "pinned_host")
            policy = cp.save_from_both_policies(cp.nothing_saveable, offload)  # !
            """,
            jax=(0, 10),
        ),
    )
    good = (
        Example(
            """
            import jax

            cp = jax.checkpoint_policies
            policy = cp.save_from_both_policies(cp.dots_saveable, cp.save_only_these_names("a"))
            """
        ),
        Example(
            """
            import jax

            cp = jax.checkpoint_policies
            policy = cp.save_from_both_policies(
                cp.dots_saveable,
                cp.save_from_both_policies(cp.save_only_these_names("a"), cp.save_only_these_names("b")),
            )
            """
        ),
        Example(
            """
            import jax


            def union(one, two, *more):
                both = jax.checkpoint_policies.save_from_both_policies
                return both(one, two), both(*more), both(one, **dict(two))
            """
        ),
        Example(
            """
            import functools

            import jax

            cp = jax.checkpoint_policies
            with_dots = functools.partial(cp.save_from_both_policies, cp.dots_saveable)
            policy = with_dots(cp.save_only_these_names("a"))
            """
        ),
        Example(
            """
            import jax

            cp = jax.checkpoint_policies


            def choose(offloads):
                policy = cp.dots_saveable
                if offloads:
                    policy = cp.offload_dot_with_no_batch_dims("device", "pinned_host")
                    return policy
                return cp.save_from_both_policies(policy, cp.save_only_these_names("a"))
            """
        ),
        Example(
            """
            def save_from_both_policies(*policies):
                return policies


            policy = save_from_both_policies(1, 2, 3)
            """
        ),
        Example(
            """
            import jax
            import pytest


            def test_three():
                with pytest.raises(TypeError):
                    jax.checkpoint_policies.save_from_both_policies(1, 2, 3)
            """
        ),
        Example(
            """
            import jax

            cp = jax.checkpoint_policies
            offload = cp.offload_dot_with_no_batch_dims("device", "pinned_host")
            policy = cp.save_from_both_policies(cp.nothing_saveable, offload)
            """,
            jax=(0, 12),
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for made in policies.made(facts):
            if made.name != "save_from_both_policies":
                continue
            given = [*made.args, *(k.value for k in made.call.keywords if k.arg in _PARAMETERS)]
            count = len(made.args) + len(made.call.keywords)
            if made.complete and count != 2:
                what = policies.written(facts, made.call.func)
                policy = "policy" if count == 1 else "policies"
                message = f"`{what}` takes two policies and gets {count} {policy}"
                yield self.report(
                    facts,
                    made.call,
                    message,
                    why="The call raises a TypeError.",
                    help="give it two policies, one of which may be a union itself",
                )
            elif not (facts.jax_is((0, 12)) and _has_trivial(facts, given)):
                yield from self._offloading(facts, given)

    def _offloading(self, facts: Facts, given: list[ast.expr]) -> Iterator[Violation]:
        for node in given:
            policy = facts.policy_of(node)
            if policy.kind == "factory" and policy.name in apis.OFFLOAD_FACTORIES:
                what = policies.written(facts, node) if isinstance(node, ast.Name) else policy.name
                yield self.report(
                    facts, node, f"`{what}` offloads, and cannot be combined with another policy"
                )


def _has_trivial(facts: Facts, given: list[ast.expr]) -> bool:
    return any(policies.name_of(facts, node) in _TRIVIAL for node in given)
