from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import checkpoint_calls
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class PreventCseType(Rule):
    """`prevent_cse` is given something that is not a bool.

    ## What it does
    Finds `prevent_cse=None`, numbers, strings, and tuples or lists with elements that are not
    bools.

    ## Why is this bad?
    It raises a TypeError when the function is checkpointed (flax: when it is called). A string is
    a sequence of characters to jax: one value for each argument, and a ValueError at the call
    where their numbers differ; where they do not, it means True.

    ## Use instead
    `True`, `False`, or a tuple of them, one for each argument.

    ## When is this fine?
    Never; values that are computed are not checked.

    ## Is the fix safe?
    Yes: it writes `False` for 0 and `True` for 1, which meant the same to jax until it refused them
    (0.7.2).
    """

    code = "JXR405"
    name = "prevent-cse-type"
    severity = "error"
    why = "jax takes a bool or a tuple of bools here, and refuses anything else."
    help = "write `True` or `False`"
    fixes = "safe"
    jax = ">=0.7.2"
    bad = (
        Example(
            """
            import jax


            def wrap(f):
                return jax.checkpoint(f, prevent_cse=0)  # !
            """,
            fixed="""
            import jax


            def wrap(f):
                return jax.checkpoint(f, prevent_cse=False)
            """,
        ),
        Example(
            """
            from functools import partial

            from jax import remat as ckpt


            @partial(ckpt, prevent_cse=1)  # !
            def layer(x):
                return x * x
            """,
            fixed="""
            from functools import partial

            from jax import remat as ckpt


            @partial(ckpt, prevent_cse=True)
            def layer(x):
                return x * x
            """,
        ),
        Example("""
            import jax


            def wrap(f):
                return jax.remat(f, prevent_cse=None)  # !
            """),
        Example(
            """
            import jax


            def wrap(f):
                return jax.checkpoint(f, prevent_cse='no')  # !
            """
        ),
        Example(
            """
            from flax import linen as nn

            CSE = None


            def wrap(Block):
                return nn.remat(Block, prevent_cse=CSE)  # !
            """
        ),
        Example(
            """
            import equinox as eqx


            def wrap(f):
                return eqx.filter_checkpoint(f, prevent_cse=(True, None))  # !
            """
        ),
    )
    good = (
        Example("""
            import jax


            def wrap(f):
                return jax.checkpoint(f, prevent_cse=False)
            """),
        Example(
            """
            import jax


            def wrap(f):
                return jax.checkpoint(f, prevent_cse=(True, False))
            """
        ),
        Example(
            """
            import jax


            def wrap(f, config):
                return jax.checkpoint(f, prevent_cse=config.prevent_cse)
            """
        ),
        Example(
            """
            import jax


            def wrap(f, prevent_cse=None):
                return jax.checkpoint(f, prevent_cse=prevent_cse)
            """
        ),
        Example(
            """
            import jax


            def wrap(f):
                return jax.checkpoint(f, prevent_cse=0)
            """,
            jax=(0, 7),
        ),
        Example(
            """
            import jax


            def wrap(f, scanned):
                return jax.checkpoint(f, prevent_cse=not scanned)
            """
        ),
        Example("""
            import jax


            def wrap(f):
                return jax.checkpoint(f, prevent_cse=[True])
            """),
        Example(
            """
            import jax
            import pytest


            def test_refused():
                with pytest.raises(TypeError, match='prevent_cse'):
                    jax.checkpoint(abs, prevent_cse=None)
            """
        ),
        Example("""
            def wrap(checkpoint, f):
                return checkpoint(f, prevent_cse=None)
            """),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        if not facts.jax_is((0, 8)):
            return
        for given in checkpoint_calls.keywords(facts, "prevent_cse"):
            if given.site.api.library == "keras":
                continue
            value = facts.names.constant(given.value)
            if value is ... or _is_accepted(value):
                continue
            yield self.report(
                facts,
                given.node,
                f"`prevent_cse={ast.unparse(given.value)}` is not a bool",
                fix=_as_bool(facts, given.value),
            )


def _is_accepted(value: object) -> bool:
    elements = value if isinstance(value, (tuple, list)) else (value,)
    return all(isinstance(e, (bool, tuple, list, dict)) for e in elements)


def _as_bool(facts: Facts, node: ast.expr) -> Fix | None:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0, 1):
        text = str(bool(node.value))
        return Fix(f"Write `{text}`", (edits.replace(facts.source, node, text),), "safe")
    return None
