from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

_LIBRARIES = frozenset({"jax", "linen"})


class Remat3ListStaticArgnums(Rule):
    """A list for `static_argnums`, which only `jax_remat3` accepts.

    ## What it does
    Finds `static_argnums=[1]`, a list or a set, given to `jax.checkpoint` or `nn.remat`.

    ## Why is this bad?
    The implementation behind the flag `jax_remat3` accepts it, as `jax.jit` does. The present
    default raises TypeError when the function is called. Code that was tried with the flag on stops
    working without it.

    ## Use instead
    A tuple, `static_argnums=(1,)`: both accept it.

    ## When is this fine?
    Where `jax_remat3` is always on.

    ## Is the fix safe?
    Yes: a tuple of the same numbers means the same with the flag, and works without.
    """

    code = "JXR702"
    name = "remat3-list-static-argnums"
    severity = "info"
    why = "Without `jax_remat3` this raises TypeError when the function is called."
    help = "give a tuple"
    fixes = "safe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def f(x, flag):
                return jnp.sin(x) if flag else x


            run = jax.checkpoint(f, static_argnums=[1])  # !
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def f(x, flag):
                return jnp.sin(x) if flag else x


            run = jax.checkpoint(f, static_argnums=(1,))
            """,
        ),
        Example(
            """
            import functools

            import jax.numpy as jnp
            from jax import remat as ckpt


            @functools.partial(ckpt, static_argnums=[1, 2])  # !
            def run(x, flag, scale):
                return scale * jnp.sin(x) if flag else x
            """,
            fixed="""
            import functools

            import jax.numpy as jnp
            from jax import remat as ckpt


            @functools.partial(ckpt, static_argnums=(1, 2))
            def run(x, flag, scale):
                return scale * jnp.sin(x) if flag else x
            """,
        ),
    )
    good = (
        Example("""
            import jax
            import jax.numpy as jnp


            def f(x, flag):
                return jnp.sin(x) if flag else x


            run = jax.checkpoint(f, static_argnums=(1,))
            """),
        Example("""
            import jax
            import jax.numpy as jnp


            def f(x, flag):
                return jnp.sin(x) if flag else x


            run = jax.checkpoint(f, static_argnums=1)
            """),
        Example("""
            import jax
            import jax.numpy as jnp


            def f(x, flag):
                return jnp.sin(x) if flag else x


            run = jax.jit(jax.checkpoint(f), static_argnums=[1])
            """),
        Example(  # this one converts it
            """
            from flax.linen import partitioning


            def make(Block):
                return partitioning.remat(Block, static_argnums=[1])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def make(f, static):
                return jax.checkpoint(f, static_argnums=static)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            given = site.keyword("static_argnums")
            value = facts.names.definitely(given) if given is not None else None
            if site.api.library not in _LIBRARIES or not isinstance(value, (ast.List, ast.Set)):
                continue
            yield self.report(
                facts,
                site.node,
                f"`static_argnums={ast.unparse(value)}` is accepted only with `jax_remat3`: "
                "without it, a TypeError",
                fix=_fix(facts, site, value),
            )


def _fix(facts: Facts, site: Site, value: ast.List | ast.Set) -> Fix | None:
    """Writes a tuple, where the list is the argument itself and has no comments inside."""
    segment = facts.source.segment(facts.source.span(value))
    if site.keyword("static_argnums") is not value or not isinstance(value, ast.List):
        return None
    inner = segment[1:-1].strip()
    if "\n" in inner or "#" in inner or any(isinstance(e, ast.Starred) for e in value.elts):
        return None
    comma = "," if len(value.elts) == 1 and not inner.endswith(",") else ""
    edit = edits.replace(facts.source, value, f"({inner}{comma})")
    return Fix("Write a tuple", (edit,), "safe")
