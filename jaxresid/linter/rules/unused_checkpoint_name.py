from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns.checkpoint_names import EXCLUDING, defined_names, policy_names
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, OtherModules


class UnusedCheckpointName(Rule):
    """A checkpoint_name that no policy of the project mentions.

    ## What it does
    Finds `checkpoint_name` with a literal name that occurs nowhere else in the project, where
    the project's policies over names are all visible and all literal.

    ## Why is this bad?
    `checkpoint_name` alone does nothing. Where the name was meant to be in a policy, its value
    is recomputed.

    ## Use instead
    Add the name to the policy, or remove the call.

    ## When is this fine?
    In a library whose users write the policies, and for names that are kept ready for an
    experiment.
    """

    code = "JXR302"
    name = "unused-checkpoint-name"
    severity = "info"
    why = "A name that no policy mentions changes nothing."
    help = "add the name to a policy, or remove the call"
    project = True
    bad = (
        Example(
            """
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                h = checkpoint_name(x @ w, "hidden")
                y = checkpoint_name(jnp.sin(h) @ w, "output")  # !
                return jnp.sin(y)
            """,
            files={
                "policy.py": """
            import jax

            POLICY = jax.checkpoint_policies.save_only_these_names("hidden")
            """
            },
        ),
        Example(
            """
            import functools

            import jax.numpy as jnp
            from jax import ad_checkpoint as adc
            from jax import checkpoint_policies as cp
            from jax import remat as ckpt


            @functools.partial(
                ckpt,
                policy=cp.save_and_offload_only_these_names(
                    names_which_can_be_saved=["hidden"],
                    names_which_can_be_offloaded=[],
                    offload_src="device",
                    offload_dst="pinned_host",
                ),
            )
            def block(w, x):
                h = adc.checkpoint_name(x @ w, name="hidden")
                y = adc.checkpoint_name(jnp.sin(h) @ w, name="hidden_2")  # !
                return jnp.sin(y)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                return jnp.sin(checkpoint_name(x @ w, "hidden"))
            """,
            files={
                "policy.py": """
            import jax

            POLICY = jax.checkpoint_policies.save_only_these_names("hidden")
            """
            },
        ),
        # No policy over names is visible: the users of this library write it.
        Example(
            """
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                return checkpoint_name(x @ w, "hidden") ** 2
            """
        ),
        # The names of a policy come from elsewhere.
        Example(
            """
            import jax
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                return checkpoint_name(x @ w, "output") ** 2


            def make(names):
                return jax.checkpoint_policies.save_only_these_names(*names)
            """,
            files={
                "policy.py": """
            import jax

            POLICY = jax.checkpoint_policies.save_only_these_names("hidden")
            """
            },
        ),
        # Everything but the mentioned ones is saved.
        Example(
            """
            import jax
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                return checkpoint_name(x @ w, "output") ** 2


            POLICY = jax.checkpoint_policies.save_any_names_but_these("logits")
            """,
            files={
                "policy.py": """
            import jax

            POLICY = jax.checkpoint_policies.save_only_these_names("hidden")
            """
            },
        ),
        # A table of modes mentions it.
        Example(
            """
            from jax.ad_checkpoint import checkpoint_name

            MODES = {"minimal": [], "full": ["output"]}


            def block(w, x):
                return checkpoint_name(x @ w, "output") ** 2
            """,
            files={
                "policy.py": """
            import jax

            POLICY = jax.checkpoint_policies.save_only_these_names("hidden")
            """
            },
        ),
        # A factory is handed on.
        Example(
            """
            import jax
            from jax.ad_checkpoint import checkpoint_name

            FACTORIES = {
                "these": jax.checkpoint_policies.save_only_these_names,
            }


            def block(w, x):
                return checkpoint_name(x @ w, "output") ** 2
            """,
            files={
                "policy.py": """
            import jax

            POLICY = jax.checkpoint_policies.save_only_these_names("hidden")
            """
            },
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        project = facts.project
        if project is None or not facts.named or not project.complete:
            return
        used = _used_names(project)
        if used is None:
            return
        for named in facts.named:
            if named.name is None or named.name in used:
                continue
            ndefinitions = sum(d.get(named.name, 0) for d in project.of_naming(defined_names))
            if project.strings(named.name) <= ndefinitions:
                yield self.report(
                    facts, named.node, f"no policy of the project mentions the name `{named.name}`"
                )


def _used_names(project: OtherModules) -> frozenset[str] | None:
    """What all policies of the project save; None where that is not certain."""
    used: set[str] = set()
    for policies in project.of_policies(policy_names):
        if policies.handed_on or not policies.factories.isdisjoint(EXCLUDING):
            return None
        for given in policies.given:
            if given is None:
                return None
            used.add(given[0])
    return frozenset(used) or None
