from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.patterns.policy_names import FactoryCall
from jaxresid.linter.resolve import apis
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_RIGHT = {"offload_src": "device", "offload_dst": "pinned_host"}


class OffloadMemoryKind(Rule):
    """A policy offloads from or to a memory kind that does not exist.

    ## What it does
    Finds `offload_dst` other than `"pinned_host"` and `offload_src` other than `"device"`, in
    `save_and_offload_only_these_names` and `offload_dot_with_no_batch_dims`.

    ## Why is this bad?
    Since jax 0.7.1 every kind but `pinned_host` means device memory, even misspelt ones: the values
    silently stay on the device. Offloading *from* `pinned_host` raises.

    ## Use instead
    `offload_src="device", offload_dst="pinned_host"`.

    ## When is this fine?
    Before jax 0.7.1 backends had kinds of their own, such as `unpinned_host`.

    ## Is the fix safe?
    For a source, yes: it is taken for the device anyway. For a destination, no: the value is then
    offloaded.
    """

    code = "JXR211"
    name = "offload-memory-kind"
    severity = "error"
    why = "Every memory kind but pinned_host means the device, so nothing is offloaded."
    help = 'offload from "device" to "pinned_host"'
    fixes = "safe"
    jax = ">=0.7.1"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def layer(w, x):
                return jnp.cos(checkpoint_name(jnp.sin(x @ w), "hidden")).sum()


            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=["hidden"],
                offload_src="device",
                offload_dst="host",  # !
            )
            block = jax.checkpoint(layer, policy=policy)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def layer(w, x):
                return jnp.cos(checkpoint_name(jnp.sin(x @ w), "hidden")).sum()


            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=["hidden"],
                offload_src="device",
                offload_dst="pinned_host",
            )
            block = jax.checkpoint(layer, policy=policy)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax

            policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
            """
        ),
        Example(
            """
            import jax

            HOST = "pinned_host"
            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=["hidden"],
                offload_src="device",
                offload_dst=HOST,
            )
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        if not facts.jax_is((0, 7)):
            return
        for made in policies.factory_calls(facts):
            if made.name not in apis.OFFLOAD_FACTORIES:
                continue
            for keyword, right in _RIGHT.items():
                node = _argument(made, keyword)
                value = facts.names.constant(node) if node is not None else None
                if node is None or not isinstance(value, str) or value == right:
                    continue
                yield self.report(
                    facts,
                    node,
                    _message(policies.source_text(facts, node), keyword, value),
                    fix=_spell(facts, node, keyword, value),
                )


def _message(what: str, keyword: str, value: str) -> str:
    if keyword == "offload_dst":
        return f"`offload_dst` is `{what}`, which JAX takes for the device: nothing is offloaded"
    if value == "pinned_host":
        return f"`offload_src` is `{what}`, and a policy cannot offload from there"
    return f"`offload_src` is `{what}`, which is not a memory kind: JAX takes it for the device"


def _argument(made: FactoryCall, keyword: str) -> ast.expr | None:
    if made.name == "offload_dot_with_no_batch_dims":
        index = tuple(_RIGHT).index(keyword)
        before = made.args[: index + 1]
        if len(before) > index and not any(isinstance(a, ast.Starred) for a in before):
            return before[index]
    return made.keyword(keyword)


def _spell(facts: Facts, node: ast.expr, keyword: str, value: str) -> Fix | None:
    if not isinstance(node, ast.Constant):
        return None
    text = facts.source.segment(facts.source.span(node))
    if text[0] not in "'\"" or text[1:-1] != value:
        return None
    right = f"{text[0]}{_RIGHT[keyword]}{text[0]}"
    same = keyword == "offload_src" and value != "pinned_host"
    edit = edits.replace(facts.source, node, right)
    return Fix(f"Write {right}", (edit,), "safe" if same else "unsafe")
