from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Policy, Site

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_MANY = (*_LOOPS, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class OverriddenInnerPolicy(Rule):
    """The policy of a checkpoint is overridden by the checkpoint around it.

    ## What it does
    Finds a checkpointed function with a policy that is called only in functions that are themselves
    checkpointed, with another policy or none.

    ## Why is this bad?
    The outer checkpoint decides what is kept from the forward pass for the backward pass. What the
    inner policy saves is recomputed with the rest; it affects only that recomputation, and nothing
    at all in the implementation behind `jax_remat3`.

    ## Use instead
    One policy, on the outer checkpoint. A policy over names there reaches the values named inside.

    ## When is this fine?
    Where the recomputation itself is too large, as in a loop of checkpointed layers inside a
    checkpoint; that is not reported.
    """

    code = "JXR206"
    name = "overridden-inner-policy"
    severity = "warning"
    why = "The outer checkpoint decides what is kept for the backward pass."
    help = "give the outer checkpoint the policy"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp

            cp = jax.checkpoint_policies


            def layer(w, x):
                return jnp.sin(x @ w)


            @jax.checkpoint
            def block(w, x):
                y = jax.checkpoint(layer, policy=cp.dots_saveable)(w, x)  # !
                return jnp.cos(y @ w)
            """
        ),
    )
    good = (
        Example(
            """
            import jax

            cp = jax.checkpoint_policies


            @jax.checkpoint
            def block(layer, other, w, x):
                return other(w, jax.checkpoint(layer)(w, x))
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            policy = facts.policy(site)
            mine = _literal(policy)
            node = policy.node
            if mine is None or policy.saves_nothing or node is None or facts.is_class(site):
                continue
            outer = _overriding(facts, site, mine)
            if outer is not None:
                yield self.report(
                    facts,
                    node,
                    f"`{policies.source_text(facts, node)}` does not affect what is kept for the "
                    "backward pass: the checkpoint around this one decides",
                    related=stages.related_place(facts, outer.node, "checkpointed here as well"),
                )


def _literal(policy: Policy) -> str | None:
    """What identifies a policy; None where it is computed."""
    match policy.kind:
        case "none":
            return "nothing_saveable"
        case "plain":
            return policy.name
        case "factory" if policy.call is not None and policy.name is not None:
            values = [*policy.call.args, *(k.value for k in policy.call.keywords)]
            if all(isinstance(v, ast.Constant) for v in values):
                return f"{policy.name} {' '.join(sorted(ast.dump(v) for v in values))}"
    return None


def _overriding(facts: Facts, site: Site, mine: str) -> Site | None:
    """The checkpoint around every visible call of a checkpointed function, with another policy."""
    uses = facts.site_uses(site)
    definition = site.definition
    if definition is not None and facts.remote_uses(definition):
        return None
    found = None
    for use in uses:
        function = facts.names.function(use.node) if use.kind == "call" else None
        outer = _checkpoint_of(facts, function) if function is not None else None
        if outer is None or _in_python_loop(facts, use.node) or _in_python_loop(facts, site.node):
            return None
        theirs = _literal(facts.policy(outer))
        if theirs is None or theirs == mine:
            return None
        found = outer
    return found


def _checkpoint_of(facts: Facts, function: FunctionNode) -> Site | None:
    """The checkpoint that every visible use of a function goes through."""
    for decorator in getattr(function, "decorator_list", ()):
        site = facts.site_of(decorator)
        if site is not None:
            return site
    uses = facts.uses(function)
    if not isinstance(function, ast.Lambda) and facts.remote_uses(function):
        return None
    sites = {facts.site_of(u.node) if u.kind == "checkpoint" else None for u in uses}
    return sites.pop() if len(sites) == 1 else None


def _in_python_loop(facts: Facts, node: ast.AST) -> bool:
    function = facts.names.function(node)
    for parent in facts.names.ancestors(node):
        if parent is function:
            return False
        if isinstance(parent, _MANY):
            return True
    return False
