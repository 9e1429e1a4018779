from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Violation
from jaxresid.linter.fixes import edits
from jaxresid.linter.fixes import public_imports as moved
from jaxresid.linter.patterns import checkpoint_calls
from jaxresid.linter.patterns.checkpoint_calls import GivenKeyword
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_REMOVED = "was removed in jax 0.10.0"
_GONE = "is gone from jax"
_NEVER = "is not in jax"
# What is missing -> why, and where it is instead.
_MISSING: dict[str, tuple[str, str | None]] = {
    "jax.ad_checkpoint.checkpoint": (_REMOVED, "jax.checkpoint"),
    "jax.ad_checkpoint.remat": (_REMOVED, "jax.remat"),
    "jax.new_checkpoint": (_GONE, "jax.checkpoint"),
    "jax.new_remat": (_GONE, "jax.remat"),
    "jax.api.checkpoint": (_GONE, "jax.checkpoint"),
    "jax.api.remat": (_GONE, "jax.remat"),
    "jax.custom_remat": ("was in jax 0.11.0 only", None),
    "jax.checkpoint_name": (_NEVER, "jax.ad_checkpoint.checkpoint_name"),
    "jax.ad_checkpoint.saved_residuals": (_NEVER, None),
}
_LAST_PARTS = frozenset(name.rpartition(".")[2] for name in _MISSING)


class RemovedCheckpointApi(Rule):
    """Code uses a part of the checkpoint API that jax no longer has, or never had.

    ## What it does
    Finds `jax.ad_checkpoint.checkpoint` and `remat`, `jax.new_checkpoint`, `jax.custom_remat`,
    imports of `checkpoint_name` from `jax` and of `saved_residuals` from `jax.ad_checkpoint`, and the
    option `concrete=`. Unknown policies are left to the rule unknown-policy.

    ## Why is this bad?
    It raises: an ImportError or AttributeError for the names; for `concrete=`, whatever its value,
    a NotImplementedError in 0.10 and a TypeError since 0.11. `jax.ad_checkpoint.checkpoint` was
    deprecated in 0.8.2 and removed in 0.10.0.

    ## Use instead
    `jax.checkpoint`, `jax.remat`, `jax.ad_checkpoint.checkpoint_name`, and `static_argnums` in
    place of `concrete=True`.

    ## When is this fine?
    With an older jax: set `target-jax`. Code in a `try` that catches the error, or under a check of
    the version, is not reported.

    ## Is the fix safe?
    Yes: the names mean the same functions, and `concrete=False` was the default.
    """

    code = "JXR505"
    name = "removed-checkpoint-api"
    severity = "error"
    why = "The version of jax that this code targets does not have it, so this raises."
    help = "use the current public name"
    fixes = "safe"
    jax = ">=0.10 for jax.ad_checkpoint and concrete=False"
    bad = (
        Example(
            """
            import jax
            from jax.ad_checkpoint import checkpoint  # !


            def layer(x):
                return checkpoint(jax.numpy.sin)(x)
            """,
            fixed="""
            import jax
            from jax import checkpoint


            def layer(x):
                return checkpoint(jax.numpy.sin)(x)
            """,
        ),
    )
    good = (
        Example("""
            from jax import checkpoint


            def layer(f):
                return checkpoint(f)
            """),
        Example(
            """
            from jax.ad_checkpoint import checkpoint_name, print_saved_residuals


            def name(x):
                return checkpoint_name(x, 'h')
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        yield from self._imports(facts)
        yield from self._attributes(facts)
        for given in checkpoint_calls.keywords(facts, "concrete"):
            message = _concrete(facts, given)
            if message is not None:
                yield self.report(facts, given.node, message, fix=_without_concrete(facts, given))

    def _imports(self, facts: Facts) -> Iterator[Violation]:
        for node in facts.names.imports:
            if not isinstance(node, ast.ImportFrom) or node.level:
                continue
            if checkpoint_calls.is_error_expected(facts, node):
                continue
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                missing = _missing(facts, name)
                if missing is not None:
                    why, public = missing
                    fix = moved.import_from_public(facts, node, alias, public) if public else None
                    yield self.report(facts, alias, f"`{name}` {why}", fix=fix)

    def _attributes(self, facts: Facts) -> Iterator[Violation]:
        for node in facts.names.attributes:
            if node.attr not in _LAST_PARTS:
                continue
            origins = facts.names.qualnames(node)
            missing = _missing(facts, origins[0]) if len(origins) == 1 else None
            if missing is None or not isinstance(node.ctx, ast.Load):
                continue
            if not checkpoint_calls.is_error_expected(facts, node):
                why, public = missing
                fix = moved.read_from_public(facts, node, public) if public else None
                yield self.report(facts, node, f"`{ast.unparse(node)}` {why}", fix=fix)


def _missing(facts: Facts, name: str) -> tuple[str, str | None] | None:
    """Why a name is missing in the targeted jax, and its public one; None where it is there."""
    if name not in _MISSING:
        return None
    if name.startswith("jax.ad_checkpoint.") and _MISSING[name][0] == _REMOVED:
        return _MISSING[name] if facts.jax_is((0, 10)) else None
    if name == "jax.custom_remat" and facts.jax_is((0, 11), (0, 12)):
        return None
    return _MISSING[name]


def _concrete(facts: Facts, given: GivenKeyword) -> str | None:
    site = given.site
    value = facts.names.constant(given.value)
    name = checkpoint_calls.callee(facts, given.call or site.node)
    if site.api.library in {"linen", "partitioning"}:
        return f"`{name}` no longer takes `concrete=True`: this raises" if value is True else None
    if site.api.library not in {"jax", "haiku"}:
        return None
    if facts.jax_is((0, 11)):
        return f"`{name}` has no `concrete` since jax 0.11: this raises"
    if facts.jax_is((0, 10)):
        return f"`concrete` of `{name}` was removed in jax 0.10.0: this raises"
    return f"`{name}` no longer takes `concrete=True`: this raises" if value is True else None


def _without_concrete(facts: Facts, given: GivenKeyword) -> Fix | None:
    if given.call is None or facts.names.constant(given.value) is not False:
        return None
    edit = edits.remove_argument(facts.source, given.call, given.value)
    return Fix("Remove `concrete=False`", (edit,), "safe") if edit is not None else None
