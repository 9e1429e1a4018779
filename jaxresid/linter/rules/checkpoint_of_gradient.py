from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.resolve import results, stages
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

# What a training step does with a gradient, and a function under another derivative does not.
_UPDATES = frozenset({"apply_updates", "apply_gradients", "apply_if_finite"})


class CheckpointOfGradient(Rule):
    """A checkpoint wraps a function that takes a gradient inside.

    ## What it does
    Finds `jax.checkpoint(jax.grad(f))`, and a checkpointed function whose own body takes the
    gradient, such as a training step, where nothing visible differentiates the result again.

    ## Why is this bad?
    Residuals cross from the forward to the backward pass of a derivative. This checkpoint is
    outside it, so it drops nothing.

    ## Use instead
    Checkpoint inside the function that is differentiated: its layers, or its scan's body.

    ## When is this fine?
    Where the gradient is differentiated again: Hessian-vector products, implicit differentiation,
    meta-learning, force matching, or a training step unrolled under a hyper-gradient.

    ## Is the fix safe?
    No: values stay the same, but compiled code may change.
    """

    code = "JXR104"
    name = "checkpoint-of-gradient"
    severity = "warning"
    lenient_in_tests = True
    why = "Residuals cross inside the derivative; a checkpoint around it drops none of them."
    help = "checkpoint inside the function that is differentiated"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax


            def loss(w, x):
                return jax.numpy.tanh(x @ w).sum()


            def step(w, x):
                g = jax.checkpoint(jax.grad(loss))(w, x)  # !
                return w - 0.1 * g


            def train(w, xs):
                for x in xs:
                    w = jax.jit(step)(w, x)
                return w
            """,
            fixed="""
            import jax


            def loss(w, x):
                return jax.numpy.tanh(x @ w).sum()


            def step(w, x):
                g = jax.grad(loss)(w, x)
                return w - 0.1 * g


            def train(w, xs):
                for x in xs:
                    w = jax.jit(step)(w, x)
                return w
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def hvp(f, x, v):
                g = jax.checkpoint(jax.grad(f))
                return jax.jvp(g, (x,), (v,))[1]
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            derivative = _inner_derivative(facts, site)
            if derivative is not None and _never_differentiated(facts, site):
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} wraps "
                    f"`{ast.unparse(derivative.func)}`: a checkpoint outside "
                    "the derivative drops none of its residuals",
                    fix=remove_checkpoint(facts, site),
                    related=stages.related_place(facts, derivative, "the derivative"),
                )


def _inner_derivative(facts: Facts, site: Site) -> ast.Call | None:
    """The reverse-mode derivative that a site wraps: its target, or in the target's own body."""
    targets = facts.targets(site)
    if len(targets) != 1:
        return None
    target = targets[0]
    nodes: list[ast.AST] = [target] if isinstance(target, ast.Call) else []
    if isinstance(target, (ast.FunctionDef, ast.Lambda)):
        nodes = [*results.own_nodes(target)]
    for node in nodes:
        role = facts.role(node.func, "derivative") if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and role is not None and role.entry == "reverse":
            return node
    return None


def _never_differentiated(facts: Facts, site: Site) -> bool:
    """Whether every use is visible, and none is under a derivative or a loop."""
    uses = [u for u in facts.site_uses(site) if u.kind != "discarded"]
    if site.definition is not None and facts.remote_uses(site.definition):
        return False
    target = facts.target(site)
    if not uses:
        # Nobody calls it here; a training step that updates its parameters is one all the same.
        return target is not None and any(
            isinstance(n, ast.Attribute) and n.attr in _UPDATES for n in ast.walk(target)
        )
    for use in uses:
        if use.kind != "call":
            return False
        context = facts.context(use.node)
        if context.reverse or context.forward or context.loop or context.rule:
            return False
        if context.unknown or context.checkpoint:
            return False
        function = facts.names.function(use.node)
        if function is not None and not facts.uses(function):
            return False  # a library's function, which its users may differentiate
    return True
