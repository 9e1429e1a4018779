from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Edit, Fix, Violation
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.linter.text.prefilter import CHECKPOINT_MARKERS

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop

_HEAVY = frozenset({"dot", "matmul", "einsum", "tensordot", "dot_general", "conv_general_dilated"})
_FEW_CALLS = 3


class UnwrappedLoopBody(Rule):
    """The body of a differentiated loop is not checkpointed.

    ## What it does
    Finds a `lax.scan` or `lax.map` over a visible body without a checkpoint, where the module shows
    that reverse mode differentiates it and the body computes more than a step or two.

    ## Why is this bad?
    Every step's residuals are stacked: memory grows with the length of the loop.

    ## Use instead
    `lax.scan(jax.checkpoint(body, prevent_cse=False), carry, xs)`, at the cost of computing each
    step twice.

    ## When is this fine?
    Often: where memory is not short, where the body is small or linear, or where what it keeps
    would be outputs anyway. That is why the rule is off unless it is selected.

    ## Is the fix safe?
    No: values stay the same, memory and time change.
    """

    code = "JXR109"
    name = "unwrapped-loop-body"
    severity = "info"
    why = "The residuals of every step are stacked, so memory grows with the loop's length."
    help = "wrap the body in jax.checkpoint(..., prevent_cse=False) if memory is short"
    fixes = "unsafe"
    markers = (*CHECKPOINT_MARKERS, b"scan", b"map")
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(c, w):
                h = jnp.tanh(c @ w)
                return jnp.sin(h), None


            def loss(ws, x):
                out, _ = jax.lax.scan(step, x, ws)  # !
                return out.sum()


            gradient = jax.grad(loss)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def step(c, w):
                h = jnp.tanh(c @ w)
                return jnp.sin(h), None


            def loss(ws, x):
                out, _ = jax.lax.scan(jax.checkpoint(step, prevent_cse=False), x, ws)
                return out.sum()


            gradient = jax.grad(loss)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            @jax.checkpoint
            def step(c, w):
                return jnp.tanh(c @ w), None


            def loss(ws, x):
                return jax.lax.scan(step, x, ws)[0].sum()


            gradient = jax.grad(loss)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for loop in facts.loops:
            if (
                loop.qualname in {"jax.lax.scan", "jax.lax.map"}
                and len(loop.bodies) == 1
                and _is_heavy(facts, loop)
                and stages.is_checkpointed(facts, loop.bodies[0]) is False
                and _is_differentiated(facts, loop)
            ):
                body = ast.unparse(loop.bodies[0])
                what = f"`{body}`" if len(body) < 40 else "its body"
                yield self.report(
                    facts,
                    loop.node,
                    f"every step of this loop keeps its residuals: {what} is not checkpointed",
                    fix=_wrap(facts, loop),
                )


def _is_heavy(facts: Facts, loop: Loop) -> bool:
    """Whether the body multiplies matrices or calls several things."""
    origin = facts.names.single_origin(loop.bodies[0])
    if not isinstance(origin, (ast.FunctionDef, ast.Lambda)):
        return False
    calls = [n for n in ast.walk(origin) if isinstance(n, ast.Call)]
    if any(facts.role(c.func, "derivative") for c in calls):
        return False
    return len(calls) >= _FEW_CALLS or any(
        (isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult))
        or (isinstance(n, ast.Call) and _last(n.func) in _HEAVY)
        for n in ast.walk(origin)
    )


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_differentiated(facts: Facts, loop: Loop) -> bool:
    context = facts.context(loop.node)
    return context.reverse and not (
        context.checkpoint or context.rule or context.loop or context.only_rule
    )


def _wrap(facts: Facts, loop: Loop) -> Fix | None:
    from jaxresid.linter.fixes import edits

    callee = edits.name_for(facts, "jax.checkpoint")
    if callee is None:
        return None
    span = facts.source.span(loop.bodies[0])
    text = facts.source.segment(span)
    return Fix(
        "Checkpoint the body",
        (Edit(span, f"{callee}({text}, prevent_cse=False)"),),
        "unsafe",
    )
