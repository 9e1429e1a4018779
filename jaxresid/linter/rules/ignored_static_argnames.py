from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import checkpoint_calls
from jaxresid.linter.patterns.checkpoint_calls import GivenKeyword
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Edit, Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

# `jax.remat` has never had it; `haiku.remat` hands its keywords to `jax.remat`.
_ACCEPTING = frozenset(
    {"jax.checkpoint", "jax.ad_checkpoint.checkpoint", "jax._src.ad_checkpoint.checkpoint"}
)


class IgnoredStaticArgnames(Rule):
    """A checkpoint is given `static_argnames`, which it ignores or refuses.

    ## What it does
    Finds `static_argnames=` on any checkpoint.

    ## Why is this bad?
    `jax.checkpoint` has the parameter since 0.10.2, but its default implementation ignores it
    silently: the arguments are traced, and `if flag:` raises a TracerBoolConversionError.
    Before 0.10.2, and always on `jax.remat`, `flax.linen.remat`, `flax.nnx.remat` and
    `equinox.filter_checkpoint`, it raises a TypeError.

    ## Use instead
    `static_argnums`, with the arguments passed by position; or bind them beforehand:
    `jax.checkpoint(functools.partial(f, flag=True))`.

    ## When is this fine?
    On `jax.checkpoint` with the configuration option `jax_remat3` on, which honours it.

    ## Is the fix safe?
    No: it writes positions instead of names, which means the same only if the callers pass these
    arguments by position.
    """

    code = "JXR503"
    name = "ignored-static-argnames"
    severity = "error"
    why = "Arguments that are not static are traced, and Python cannot branch on them."
    help = "use `static_argnums`, or bind the arguments with `functools.partial`"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax


            def layer(x, train):
                return x * 2 if train else x


            def loss(x):
                block = jax.checkpoint(layer, static_argnames="train")  # !
                return block(x, True).sum()
            """,
            fixed="""
            import jax


            def layer(x, train):
                return x * 2 if train else x


            def loss(x):
                block = jax.checkpoint(layer, static_argnums=(1,))
                return block(x, True).sum()
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def layer(x, train):
                return x * 2 if train else x


            block = jax.checkpoint(layer, static_argnums=(1,))
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for given in checkpoint_calls.keywords(facts, "static_argnames"):
            site = given.site
            if site.api.library == "keras":
                continue
            takes_it = site.qualname in _ACCEPTING
            accepted = takes_it and facts.jax_is((0, 10))
            empty = facts.names.constant(given.value) in ((), [], "")
            if accepted and (empty or "jax_remat3" in facts.source.text):
                continue
            name = checkpoint_calls.callee(facts, given.call or site.node)
            message = f"`{name}` has no `static_argnames`: this raises"
            if accepted:
                message = f"`{name}` ignores `static_argnames`: the arguments are traced"
            elif takes_it:
                message = f"`{name}` has no `static_argnames` before jax 0.10.2: this raises"
            yield self.report(facts, given.node, message, fix=_fix(facts, given))


def _fix(facts: Facts, given: GivenKeyword) -> Fix | None:
    site = given.site
    indices = _indices(facts, given)
    if not isinstance(given.node, ast.keyword) or site.api.library != "jax" or not indices:
        return None
    if "static_argnums" in site.arguments.keywords or site.arguments.dynamic:
        return None
    text = f"static_argnums=({', '.join(map(str, indices))}{',' if len(indices) == 1 else ''})"
    start = facts.source.start(facts.source.span(given.node))
    end = facts.source.end(facts.source.span(given.value))
    edit = Edit(facts.source.between(start, end), text)
    return Fix("Give the positions instead of the names", (edit,), "unsafe")


def _indices(facts: Facts, given: GivenKeyword) -> list[int]:
    """Where the named arguments stand in the function, where that is visible."""
    function = given.site.definition or facts.names.single_origin(given.site.target)
    if not isinstance(function, (ast.FunctionDef, ast.Lambda)):
        return []
    if facts.names.class_of(function) is not None:
        return []
    names = facts.names.constant(given.value)
    wanted = [names] if isinstance(names, str) else names
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if not isinstance(wanted, (list, tuple)) or any(n not in parameters for n in wanted):
        return []
    return [parameters.index(n) for n in wanted]
