from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Violation
from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.resolve import results, stages
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site


class NestedCheckpoint(Rule):
    """A function is checkpointed twice in a row.

    ## What it does
    Finds `jax.checkpoint(jax.checkpoint(f))`, two checkpoint decorators on one function, a
    decorated function that is checkpointed again, with nothing in between, and a checkpoint around
    a function that does nothing but call a checkpointed one, or one that a function of the module
    made and checkpointed.

    ## Why is this bad?
    What crosses from the forward to the backward pass is decided by the outer checkpoint alone. The
    inner one adds a barrier, and a policy of its own is ignored.

    ## Use instead
    One checkpoint, with the intended policy.

    ## When is this fine?
    Where the two are at different levels: a checkpointed block in a function that is checkpointed
    too (recursive checkpointing). The rule is silent there, and where one of the two depends on a
    condition.

    ## Is the fix safe?
    Yes, if neither has a policy: the same residuals are kept. Otherwise there is no fix.
    """

    code = "JXR106"
    name = "nested-checkpoint"
    severity = "warning"
    lenient_in_tests = True
    why = "The outer checkpoint alone decides what is kept; the inner one only adds a barrier."
    help = "keep one of them, with the intended policy"
    fixes = "safe"
    bad = (
        Example(
            """
            import jax


            def run(f, x):
                return jax.checkpoint(jax.checkpoint(f))(x)  # !
            """,
            fixed="""
            import jax


            def run(f, x):
                return jax.checkpoint(f)(x)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def run(f, g, x):
                return jax.checkpoint(lambda x: g(jax.checkpoint(f)(x)))(x)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            inner = _directly_inside(facts, site)
            if inner is None:
                continue
            both = [facts.policy(s) for s in (site, inner)]
            if any(p.kind == "unknown" and p.node is None for p in both):
                continue  # `**kwargs`
            plain = all(p.kind == "none" for p in both)
            message = f"{stages.site_text(facts, site)} checkpoints what is already checkpointed"
            if not plain:
                message += ": the inner policy does not affect what is kept"
            yield self.report(
                facts,
                site.node,
                message,
                fix=_fix(facts, site, inner) if plain else None,
                related=stages.related_place(facts, inner.node, "the other checkpoint"),
            )


def _directly_inside(facts: Facts, site: Site) -> Site | None:
    """The site whose result a site checkpoints, where that is certain."""
    if site.definition is not None:
        decorators = site.definition.decorator_list
        below = decorators[decorators.index(site.node) + 1 :]
        for decorator in below:
            inner = facts.site_of(decorator)
            if inner is not None:
                return inner
            if not any(r.kind == "transform" for r in facts.roles(decorator)):
                return None
        return _called_inside(facts, site.definition)
    targets = facts.targets(site)
    if len(targets) != 1 or targets[0] is None or not isinstance(targets[0], ast.AST):
        return None
    inner = facts.site_of(targets[0]) or _called_inside(facts, targets[0])
    if inner is None or inner is site or inner.api.loop or site.api.loop:
        return None
    if inner.definition is not None and inner.definition.decorator_list[0] is not inner.node:
        return None  # something else stands between the two
    return inner


def _called_inside(facts: Facts, function: ast.AST) -> Site | None:
    """The checkpoint of what a function does nothing but call."""
    if not isinstance(function, (ast.FunctionDef, ast.Lambda)):
        return None
    made = results.returned_expression(facts, function)
    if not isinstance(made, ast.Call) or not stages.is_whole(facts, function, made):
        return None
    callee = facts.names.single_origin(made.func)
    if isinstance(callee, ast.Call) and facts.site_of(callee) is None:
        callee = facts.inside(callee)
    if not isinstance(callee, ast.AST):
        return None
    return facts.site_of(callee) or _built(facts, callee)


def _built(facts: Facts, call: ast.AST) -> Site | None:
    """The checkpoint that a function of this module returns, where it can return no other."""
    builder = facts.names.single_origin(call.func) if isinstance(call, ast.Call) else None
    if not isinstance(builder, ast.FunctionDef) or builder.decorator_list:
        return None
    returned = [n.value for n in results.own_nodes(builder) if isinstance(n, ast.Return)]
    origins = [facts.names.single_origin(value) for value in returned]
    sites = [facts.site_of(o) if isinstance(o, ast.AST) else None for o in origins]
    return sites[0] if len(sites) == 1 else None


def _fix(facts: Facts, site: Site, inner: Site) -> Fix | None:
    if facts.prevent_cse(site) != facts.prevent_cse(inner):
        return None
    if site.arguments.get(None, "static_argnums") or inner.arguments.get(None, "static_argnums"):
        return None
    return remove_checkpoint(facts, site, "safe")
