from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes.edits import replace
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Named


class CheckpointNameArguments(Rule):
    """The arguments of checkpoint_name are swapped, or the name is missing or not a string.

    ## What it does
    Finds `checkpoint_name("a", y)`, `checkpoint_name(y)` and `checkpoint_name(y, 3)`.

    ## Why is this bad?
    Without a name, or with a string as the value, the call raises `TypeError`. A name that is not a
    string is accepted, or fails when the function is differentiated; policies list strings, and
    none of them equals it.

    ## Use instead
    `checkpoint_name(y, "a")`: the value first, then the name, a string.

    ## When is this fine?
    In a test of the error.

    ## Is the fix safe?
    Yes: the swapped call always raises. If the name is missing or not a string there is no fix.
    """

    code = "JXR307"
    name = "checkpoint-name-arguments"
    severity = "error"
    why = "checkpoint_name takes the value first and then its name, a string."
    help = 'write `checkpoint_name(value, "name")`'
    fixes = "safe"
    bad = (
        Example(
            """
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                y = checkpoint_name("a", x @ w)  # !
                return jnp.sin(y)
            """,
            fixed="""
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                y = checkpoint_name(x @ w, "a")
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
                return jnp.sin(checkpoint_name(x @ w, "a"))
            """
        ),
        Example(
            """
            from jax import ad_checkpoint as adc


            def block(x, i, name=None):
                x = adc.checkpoint_name(name=f"layer_{i}", x=x)
                x = adc.checkpoint_name(x, name)
                return adc.checkpoint_name(x, name or "hidden")
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for named in facts.named:
            role = facts.role(named.node.func, "name")
            if role is None or facts.arguments(named.node, role).dynamic:
                continue
            message = _message(facts, named)
            if message is not None:
                yield self.report(facts, named.node, message, fix=_swap(facts, named))


def _message(facts: Facts, named: Named) -> str | None:
    """What is wrong with the arguments, if anything is."""
    callee = ast.unparse(named.node.func)
    if named.argument is None:
        return f"`{callee}` is given no name"
    argument = facts.names.constant(named.argument)
    if _is_string(facts, named.value):
        assert named.value is not None
        if named.name is None:
            return f"the arguments of `{callee}` are swapped: the value comes first"
        return f"`{callee}` is given the string {ast.unparse(named.value)} as the value to name"
    if argument is ... or isinstance(argument, str):
        return None
    return f"the name given to `{callee}` is `{ast.unparse(named.argument)}`, which is not a string"


def _is_string(facts: Facts, node: ast.expr | None) -> bool:
    return node is not None and isinstance(facts.names.constant(node), str)


def _swap(facts: Facts, named: Named) -> Fix | None:
    call = named.node
    if len(call.args) != 2 or call.keywords or named.name is not None:
        return None
    value, argument = call.args
    if named.value is not value or not _is_string(facts, value):
        return None
    source = facts.source
    texts = [source.segment(source.span(arg)) for arg in call.args]
    edits = (replace(source, value, texts[1]), replace(source, argument, texts[0]))
    return Fix("Swap the arguments", edits, "safe")
