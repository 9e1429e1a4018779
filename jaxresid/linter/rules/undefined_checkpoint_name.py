from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.text.nearest import did_you_mean
from jaxresid.base.violations import Violation
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
