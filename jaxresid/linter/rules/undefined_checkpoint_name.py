from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import closed_module
from jaxresid.linter.patterns.checkpoint_names import (
    LIBRARY_NAMES,
    SAVING,
    Mention,
    computed_names,
    defined_names,
    mentions,
    policy_names,
)
from jaxresid.linter.rule import Example, Rule
from jaxresid.text.nearest import did_you_mean
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


_LAYERS = ("flax.linen.", "haiku.")


class UndefinedCheckpointName(Rule):
    """A policy is given a name that no checkpoint_name of the project defines.

    ## What it does
    Finds literal names in `save_only_these_names`, `save_any_names_but_these` and
    `save_and_offload_only_these_names` that nothing in the project could define: no
    `checkpoint_name` has it or could compute it, and the string occurs nowhere but in policies. The
    rule is silent if only a part of the project is known, unless all that the checkpoint runs is in
    one file; there the names of layers (`nn.Dense(8, name="qkv")`) are no names of values either.

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
        # Nothing is named at all, and the names of layers are no names of values.
        Example(
            """
            import flax.linen as nn
            import jax


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return x + nn.Dense(8)(nn.gelu(nn.Dense(32, name="up_proj")(x)))


            class Net(nn.Module):
                @nn.compact
                def __call__(self, x):
                    policy = jax.checkpoint_policies.save_only_these_names("up_proj")  # !
                    return nn.remat(Block, policy=policy)(name="block")(x)
            """
        ),
        # A table of names, of which some are computed otherwise.
        Example(
            """
            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name

            SAVED = {"few": ["block_0"], "many": ["block_0", "blokc_1"]}  # !


            def block(w, x, i):
                return jnp.sin(checkpoint_name(x @ w, f"block_{i}"))


            def make(kind):
                policy = jax.checkpoint_policies.save_only_these_names(*SAVED[kind])
                return jax.checkpoint(block, policy=policy, static_argnums=(2,))
            """
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
        # The file runs what it is given, what another package defines, or only makes the policy.
        Example(
            """
            import jax


            def make(layer):
                policy = jax.checkpoint_policies.save_only_these_names("attn_out")
                return jax.checkpoint(lambda w, x: layer(w, x), policy=policy)
            """
        ),
        Example(
            """
            import jax
            from attention import attend

            policy = jax.checkpoint_policies.save_only_these_names("attn_out")
            layer = jax.checkpoint(lambda w, x: attend(x @ w), policy=policy)
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp

            policy = jax.checkpoint_policies.save_only_these_names("attn_out")
            layer = jax.checkpoint(lambda w, x: jnp.sin(x @ w) @ w)
            """
        ),
        Example(
            """
            import flax.linen as nn
            import jax


            class Block(nn.Module):
                attend: object

                @nn.compact
                def __call__(self, x):
                    return x + self.attend(nn.Dense(8)(x))


            class Net(nn.Module):
                @nn.compact
                def __call__(self, x):
                    policy = jax.checkpoint_policies.save_only_these_names("attn_out")
                    return nn.remat(Block, policy=policy)(attend=nn.relu)(x)
            """
        ),
        # A kernel of JAX's gets the name as an argument.
        Example(
            """
            import jax
            from jax.experimental.pallas.ops.tpu.splash_attention import make_splash_mha

            kernel = make_splash_mha(None, residual_checkpoint_name="attn_out")
            policy = jax.checkpoint_policies.save_only_these_names("attn_out")
            layer = jax.checkpoint(lambda q, k, v: kernel(q, k, v), policy=policy)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        if not facts.policy_calls:
            return
        project = facts.project if facts.project and facts.project.complete else None
        is_closed = closed_module.is_closed(facts)
        modules = [defined_names(facts)] if is_closed else []
        patterns = [computed_names(facts)] if is_closed else []
        if project is not None:
            modules += project.of_naming(defined_names)
            patterns += project.of_naming(computed_names)
        known = frozenset(name for names in modules for name in names if name is not None)
        computed = frozenset().union(*patterns)
        if not is_closed and not known and not computed:
            return  # all names may be those of a library
        if ("", "") in computed:
            return
        seen = set()
        for mention in mentions(facts):
            if mention is None or mention.node in seen or mention.name in known | LIBRARY_NAMES:
                continue
            if any(mention.name.startswith(s) and mention.name.endswith(e) for s, e in computed):
                continue
            if _is_nowhere(facts, mention, is_closed=is_closed):
                seen.add(mention.node)
                yield self.report(facts, mention.node, _message(known, mention))


def _is_nowhere(facts: Facts, mention: Mention, *, is_closed: bool) -> bool:
    """Return whether a name stands nowhere but in policies.

    Args:
      facts: the facts of the module.
      mention: the name.
      is_closed: whether only the module is asked, where it may be the name of a layer too.
    """
    if not is_closed:
        project = facts.project
        assert project is not None
        names = project.of_policies(policy_names)
        return project.strings(mention.name) <= sum(p.nliterals.get(mention.name, 0) for p in names)
    given = {m.literal for m in mentions(facts) if m is not None}
    return all(
        node in given or _names_a_layer(facts, node)
        for node in ast.walk(facts.names.tree)
        if isinstance(node, ast.Constant) and node.value == mention.name
    )


def _names_a_layer(facts: Facts, node: ast.Constant) -> bool:
    """Return whether a string is the name of a layer of a library, which names no value."""
    keyword = facts.names.parents.get(node)
    call = facts.names.parents.get(keyword) if isinstance(keyword, ast.keyword) else None
    if not isinstance(call, ast.Call) or getattr(keyword, "arg", None) != "name":
        return False
    return any(q.startswith(_LAYERS) for q in facts.names.qualnames(call.func))


def _message(known: frozenset[str], mention: Mention) -> str:
    effect = "saves" if mention.factory in SAVING else "leaves out"
    meant = did_you_mean(mention.name, sorted(known))
    return (
        f"no `checkpoint_name` defines `{mention.name}`, so `{mention.factory}` {effect} nothing "
        f"for it{meant}"
    )
