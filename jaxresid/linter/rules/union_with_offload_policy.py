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
    """Policies are united that cannot be.

    ## What it does
    Finds `save_from_both_policies` with a policy that offloads, or with other than two policies.

    ## Why is this bad?
    A policy that offloads does not answer with a bool, and the union raises a `ValueError` once it
    is differentiated. With one policy or three the call itself raises.

    ## Use instead
    `save_and_offload_only_these_names` with the names to save and those to offload; for three
    policies, the union of a union.

    ## When it is right after all
    Since jax 0.12 the union with `nothing_saveable` is the other policy: no violation there.
    """

    code = "JXR209"
    name = "union-with-offload-policy"
    severity = "error"
    why = "The union asks both policies for a bool, and one that offloads does not give it."
    help = "list the names to save and to offload in one save_and_offload_only_these_names"
    bad = (
        Example(
            "import jax\nimport jax.numpy as jnp\n"
            "from jax.ad_checkpoint import checkpoint_name\n\n"
            "cp = jax.checkpoint_policies\n\n\ndef layer(w, x):\n"
            '    return jnp.cos(checkpoint_name(jnp.sin(x @ w), "hidden")).sum()\n\n\n'
            "policy = cp.save_from_both_policies(\n    cp.dots_saveable,\n"
            "    cp.save_and_offload_only_these_names(  # !\n"
            "        names_which_can_be_saved=[],\n"
            '        names_which_can_be_offloaded=["hidden"],\n        offload_src="device",\n'
            '        offload_dst="pinned_host",\n    ),\n)\n'
            "block = jax.checkpoint(layer, policy=policy)\n"
        ),
        Example(
            "from jax import remat as ckpt\n"
            "from jax.ad_checkpoint import checkpoint_policies\n\n"
            "both = checkpoint_policies.save_from_both_policies\n"
            'offload = checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")\n\n\n'
            "def run(layer, w, x):\n"
            '    named = checkpoint_policies.save_only_these_names("hidden")\n'
            "    return ckpt(layer, policy=both(policy_1=offload, policy_2=named))(w, x)  # !\n"
        ),
        Example(
            "import jax\n\n\ndef three():\n    cp = jax.checkpoint_policies\n"
            "    return cp.save_from_both_policies(  # !\n"
            '        cp.dots_saveable, cp.save_only_these_names("a"), cp.save_only_these_names("b")\n'
            "    )\n"
        ),
        Example(
            "import functools\n\nimport jax\n\n\ndef run(layer):\n"
            "    cp = jax.checkpoint_policies\n"
            "    wrap = functools.partial(jax.checkpoint, policy=cp.save_from_both_policies([cp.dots_saveable]))  # !\n"
            "    return wrap(layer)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n"
            'offload = cp.offload_dot_with_no_batch_dims("device", "pinned_host")\n'
            "policy = cp.save_from_both_policies(cp.nothing_saveable, offload)  # !\n",
            jax=(0, 10),
        ),
    )
    good = (
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n"
            'policy = cp.save_from_both_policies(cp.dots_saveable, cp.save_only_these_names("a"))\n'
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\npolicy = cp.save_from_both_policies(\n"
            "    cp.dots_saveable,\n"
            '    cp.save_from_both_policies(cp.save_only_these_names("a"), cp.save_only_these_names("b")),\n'
            ")\n"
        ),
        Example(
            "import jax\n\n\ndef union(one, two, *more):\n"
            "    both = jax.checkpoint_policies.save_from_both_policies\n"
            "    return both(one, two), both(*more), both(one, **dict(two))\n"
        ),
        Example(
            "import functools\n\nimport jax\n\ncp = jax.checkpoint_policies\n"
            "with_dots = functools.partial(cp.save_from_both_policies, cp.dots_saveable)\n"
            'policy = with_dots(cp.save_only_these_names("a"))\n'
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef choose(offloads):\n"
            "    policy = cp.dots_saveable\n    if offloads:\n"
            '        policy = cp.offload_dot_with_no_batch_dims("device", "pinned_host")\n'
            "        return policy\n"
            '    return cp.save_from_both_policies(policy, cp.save_only_these_names("a"))\n'
        ),
        Example(
            "def save_from_both_policies(*policies):\n    return policies\n\n\n"
            "policy = save_from_both_policies(1, 2, 3)\n"
        ),
        Example(
            "import jax\nimport pytest\n\n\ndef test_three():\n"
            "    with pytest.raises(TypeError):\n"
            "        jax.checkpoint_policies.save_from_both_policies(1, 2, 3)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n"
            'offload = cp.offload_dot_with_no_batch_dims("device", "pinned_host")\n'
            "policy = cp.save_from_both_policies(cp.nothing_saveable, offload)\n",
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
                    facts, node, f"`{what}` offloads, and cannot be united with another policy"
                )


def _has_trivial(facts: Facts, given: list[ast.expr]) -> bool:
    return any(policies.name_of(facts, node) in _TRIVIAL for node in given)
