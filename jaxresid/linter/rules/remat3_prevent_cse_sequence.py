from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class Remat3PreventCseSequence(Rule):
    """`prevent_cse` per argument is combined with static arguments, which `jax_remat3` refuses.

    ## What it does
    Finds `prevent_cse=(True, False)`, a tuple or a list, where `static_argnums` or
    `static_argnames` is given too.

    ## Why is this bad?
    The present default accepts the two together. The implementation behind the flag `jax_remat3`,
    which is on its way to becoming the default, raises NotImplementedError when the function is
    called (jax 0.12).

    ## Use instead
    One bool for `prevent_cse`; or close over the static arguments instead of passing them.

    ## When is this fine?
    Where `jax_remat3` stays off.
    """

    code = "JXR703"
    name = "remat3-prevent-cse-sequence"
    severity = "info"
    jax = ">=0.11"
    why = "With `jax_remat3` the two together raise NotImplementedError."
    help = "give one bool, or close over the static arguments"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def f(w, x, flag):
                return jnp.sin(w * x) if flag else x


            run = jax.checkpoint(f, prevent_cse=(True, False), static_argnums=(2,))  # !
            """
        ),
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp

            CSE = [False, True]


            @functools.partial(jax.checkpoint, prevent_cse=CSE, static_argnums=2)  # !
            def run(w, x, flag):
                return jnp.sin(w * x) if flag else x
            """
        ),
    )
    good = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def f(w, x, flag):
                return jnp.sin(w * x) if flag else x


            run = jax.checkpoint(f, prevent_cse=False, static_argnums=(2,))
            """
        ),
        Example("""
            import jax
            import jax.numpy as jnp


            run = jax.checkpoint(jnp.multiply, prevent_cse=(True, False))
            """),
        Example(
            """
            import jax
            import jax.numpy as jnp


            run = jax.checkpoint(jnp.add, prevent_cse=(True, False), static_argnums=())
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def make(f, cse):
                return jax.checkpoint(f, prevent_cse=cse, static_argnums=(2,))
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def make(f, static):
                return jax.checkpoint(f, prevent_cse=(True, False), static_argnums=static)
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def f(w, x, flag):
                return jnp.sin(w * x) if flag else x


            run = jax.checkpoint(f, prevent_cse=(True, False), static_argnums=(2,))
            """,
            jax=(0, 10),
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        if not facts.jax_is((0, 11)):
            return
        for site in facts.sites:
            if site.api.library != "jax":
                continue
            given = site.keyword("prevent_cse")
            value = facts.names.definitely(given) if given is not None else None
            static = next((k for k in _STATIC if _is_given(facts, site.keyword(k))), None)
            if isinstance(value, (ast.Tuple, ast.List)) and static is not None:
                yield self.report(
                    facts,
                    site.node,
                    f"`prevent_cse={ast.unparse(value)}` together with `{static}` raises "
                    "NotImplementedError with `jax_remat3`",
                )


_STATIC = ("static_argnums", "static_argnames")


def _is_given(facts: Facts, node: ast.expr | None) -> bool:
    """Whether it is certain that there are static arguments."""
    value = facts.names.constant(node) if node is not None else ...
    return value is not ... and value not in ((), [], None, "")
