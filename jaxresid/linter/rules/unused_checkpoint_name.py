from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.patterns.checkpoint_names import EXCLUDING, defined_names, policy_names
from jaxresid.linter.rule import Example, Rule

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
