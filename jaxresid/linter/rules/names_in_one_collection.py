from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import apis
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Edit, Fix, Span, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_MAKERS = {"tuple": "tuple", "list": "list", "set": "set", "frozenset": "set", "sorted": "list"}


class NamesInOneCollection(Rule):
    """A collection of names is given where each name is an argument.

    ## What it does
    Finds `save_only_these_names(NAMES)` where `NAMES` is a list, a tuple or a set, and the same for
    `save_any_names_but_these` and `save_anything_except_these_names`.

    ## Why is this bad?
    These take each name as an argument. A tuple counts as one name, which no value has, so nothing
    matches, silently. A list or a set raises a `TypeError`, as it has no hash.

    ## Use instead
    `save_only_these_names("a", "b")`, or `save_only_these_names(*NAMES)`.

    ## When is this fine?
    Never: a name is a string. `save_and_offload_only_these_names` does take lists.

    ## Is the fix safe?
    Where a list raises, yes. Elsewhere no: the names begin to match, so other values are
    saved.
    """

    code = "JXR203"
    name = "names-in-one-collection"
    severity = "error"
    why = "Each name is an argument of its own; a collection is one name, which no value has."
    help = "unpack it with `*`"
    fixes = "safe"
    bad = (
        Example(
            """
            import jax

            policy = jax.checkpoint_policies.save_only_these_names(("attn", "mlp"))  # !
            """,
            fixed="""
            import jax

            policy = jax.checkpoint_policies.save_only_these_names(*("attn", "mlp"))
            """,
        ),
    )
    good = (
        Example(
            """
            import jax

            policy = jax.checkpoint_policies.save_only_these_names("attn", "mlp")
            """
        ),
        Example(
            """
            import jax

            NAMES = ("attn", "mlp")
            policy = jax.checkpoint_policies.save_only_these_names(*NAMES, *["out"])
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for made in policies.factory_calls(facts):
            if made.name not in apis.NAME_FACTORIES:
                continue
            for argument in made.args:
                kind = _collection(facts, argument)
                if kind is None:
                    continue
                what = policies.source_text(facts, argument)
                message = f"`{what}` is a {kind}, but each argument of `{made.name}` is one name"
                fix = _unpack(facts, argument, kind, made.name)
                yield self.report(facts, argument, message, fix=fix)


def _collection(facts: Facts, node: ast.expr) -> str | None:
    """What collection an expression makes for sure."""
    origin = facts.names.single_origin(node)
    match origin:
        case ast.Tuple():
            return "tuple"
        case ast.List() | ast.ListComp():
            return "list"
        case ast.Set() | ast.SetComp():
            return "set"
        case ast.GeneratorExp():
            return "generator"
        case ast.Call(func=ast.Name(id=name) as func) if not facts.names.bindings(func):
            return _MAKERS.get(name)
    return None


def _unpack(facts: Facts, argument: ast.expr, kind: str, factory: str) -> Fix | None:
    span = facts.source.span(argument)
    if isinstance(argument, ast.GeneratorExp):
        return None  # it may have no brackets of its own
    raises = kind == "list" and factory != "save_anything_except_these_names"
    at = Span(span.row, span.column, span.row, span.column)
    return Fix("Unpack the names", (Edit(at, "*"),), "safe" if raises else "unsafe")
