from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns.checkpoint_names import (
    LIBRARY_NAMES,
    SAVING,
    Mention,
    defined_names,
    mentions,
    policy_names,
)
from jaxresid.linter.rule import Example, Rule
from jaxresid.text.nearest import did_you_mean
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class UndefinedCheckpointName(Rule):
    """A policy is given a name that no checkpoint_name of the project defines.

    ## What it does
    Finds literal names in `save_only_these_names`, `save_any_names_but_these` and
    `save_and_offload_only_these_names` that nothing in the project could define: no
    `checkpoint_name` has it, and the string occurs nowhere but in policies. The rule is silent if
    only a part of the project is known, or if some `checkpoint_name` computes its name.

    ## Why is this bad?
    A policy that matches no name is not an error: everything is recomputed, as if the policy were
    `nothing_saveable`, and the program is slower than it was meant to be.

    ## Use instead
    The name as it is spelled in `checkpoint_name`, or `checkpoint_name` on the value that the
    policy was meant for.

    ## When is this fine?
    A library that the project calls may name values inside itself. The well-known ones are
    exempt; for others, silence the line.
    """

    code = "JXR301"
    name = "undefined-checkpoint-name"
    severity = "warning"
    why = "A policy silently ignores names that do not exist."
    help = "spell the name as the `checkpoint_name` call does, or remove it"
    project = True
    bad = (
        Example(
            """
            import jax

            from model import block

            policy = jax.checkpoint_policies.save_only_these_names("qkv_porj")  # !
            layer = jax.checkpoint(block, policy=policy)
            """,
            files={
                "model.py": """
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                y = checkpoint_name(x @ w, "qkv_proj")
                return jnp.sin(y)
            """
            },
        ),
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp
            from jax import checkpoint_policies as cp
            from jax import remat as ckpt
            from jax.ad_checkpoint import checkpoint_name


            @functools.partial(
                ckpt,
                policy=cp.save_and_offload_only_these_names(
                    names_which_can_be_saved=["hidden"],
                    names_which_can_be_offloaded=["out", "hiden"],  # !
                    offload_src="device",
                    offload_dst="pinned_host",
                ),
            )
            def block(w, x):
                h = checkpoint_name(x @ w, "hidden")
                y = checkpoint_name(jnp.sin(h) @ w, "out")
                return jnp.sin(y)
            """,
        ),
        Example(
            """
            import jax.numpy as jnp
            from jax import ad_checkpoint as adc
            from jax import checkpoint

            SAVED = ("mlp", "attention")  # !
            policy = adc.checkpoint_policies.save_only_these_names(*SAVED)


            def block(w, x):
                return jnp.sin(adc.checkpoint_name(x @ w, "mlp"))


            layer = checkpoint(block, policy=policy)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                return jnp.sin(checkpoint_name(x @ w, name="logits_out"))


            layer = jax.checkpoint(
                block,
                policy=jax.checkpoint_policies.save_any_names_but_these(
                    "logit_out"  # !
                ),
            )
            """,
        ),
    )
    good = (
        Example(
            """
            import jax

            from model import block

            policy = jax.checkpoint_policies.save_only_these_names("qkv_proj")
            layer = jax.checkpoint(block, policy=policy)
            """,
            files={
                "model.py": """
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                y = checkpoint_name(x @ w, "qkv_proj")
                return jnp.sin(y)
            """
            },
        ),
        # No name of the project is visible: they are all defined elsewhere.
        Example(
            """
            import jax
            from zoo import block

            policy = jax.checkpoint_policies.save_only_these_names("qkv_porj")
            layer = jax.checkpoint(block, policy=policy)
            """
        ),
        # A kernel gets the name as an argument.
        Example(
            """
            import jax

            from model import block
            from zoo import make_kernel

            kernel = make_kernel(residual_checkpoint_name="attn_out")
            policy = jax.checkpoint_policies.save_only_these_names("qkv_proj", "attn_out")
            layer = jax.checkpoint(block, policy=policy)
            """,
            files={
                "model.py": """
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                y = checkpoint_name(x @ w, "qkv_proj")
                return jnp.sin(y)
            """
            },
        ),
        # Some name is computed.
        Example(
            """
            import jax

            from model import block

            policy = jax.checkpoint_policies.save_only_these_names("qkv_proj", "layer_3")
            layer = jax.checkpoint(block, policy=policy)
            """,
            files={
                "model.py": """
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                y = checkpoint_name(x @ w, "qkv_proj")
                return jnp.sin(y)
            """,
                "layers.py": """
            from jax.ad_checkpoint import checkpoint_name


            def tag(x, i):
                return checkpoint_name(x, f"layer_{i}")
            """,
            },
        ),
        # The attention of a library defines it.
        Example(
            """
            import jax

            from model import block

            policy = jax.checkpoint_policies.save_only_these_names("qkv_proj", "context")
            layer = jax.checkpoint(block, policy=policy)
            """,
            files={
                "model.py": """
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                y = checkpoint_name(x @ w, "qkv_proj")
                return jnp.sin(y)
            """
            },
        ),
        # The name is a constant that both sides use.
        Example(
            """
            import jax
            from jax.ad_checkpoint import checkpoint_name

            HIDDEN = "hidden"


            def block(w, x):
                return checkpoint_name(x @ w, HIDDEN) ** 2


            policy = jax.checkpoint_policies.save_only_these_names(HIDDEN)
            """,
        ),
        # The names come from a configuration.
        Example(
            """
            import jax

            from model import block


            def make(config):
                policy = jax.checkpoint_policies.save_only_these_names(*config.names)
                return jax.checkpoint(block, policy=policy)
            """,
            files={
                "model.py": """
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                y = checkpoint_name(x @ w, "qkv_proj")
                return jnp.sin(y)
            """
            },
        ),
        # A function of the same name that is not JAX's.
        Example(
            """
            from jax.ad_checkpoint import checkpoint_name


            def save_only_these_names(*names):
                return names


            KEPT = save_only_these_names("encoder")


            def f(x):
                return checkpoint_name(x, "hidden")
            """,
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        project = facts.project
        if project is None or not facts.policy_calls or not project.complete:
            return
        defined = {name for names in project.of_naming(defined_names) for name in names}
        if None in defined or not defined:
            return
        known = frozenset(name for name in defined if name is not None)
        seen = set()
        for mention in mentions(facts):
            if mention is None or mention.node in seen or mention.name in known | LIBRARY_NAMES:
                continue
            nliterals = sum(
                p.nliterals.get(mention.name, 0) for p in project.of_policies(policy_names)
            )
            if project.strings(mention.name) <= nliterals:
                seen.add(mention.node)
                yield self.report(facts, mention.node, _message(known, mention))


def _message(known: frozenset[str], mention: Mention) -> str:
    effect = "saves" if mention.factory in SAVING else "leaves out"
    meant = did_you_mean(mention.name, sorted(known))
    return (
        f"no `checkpoint_name` of the project defines `{mention.name}`, so `{mention.factory}` "
        f"{effect} nothing for it{meant}"
    )
