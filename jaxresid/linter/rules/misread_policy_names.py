from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Edit, Fix, Span, Violation
from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import apis
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.patterns.policy_names import FactoryCall
    from jaxresid.linter.resolve.facts import Facts

_MAKERS = {"tuple": "tuple", "list": "list", "set": "set", "frozenset": "set", "sorted": "list"}
_LISTS = ("names_which_can_be_saved", "names_which_can_be_offloaded")


class MisreadPolicyNames(Rule):
    """The names of a policy are given in a form that it reads as other names.

    ## What it does
    Finds `save_only_these_names(NAMES)` where `NAMES` is a list, a tuple or a set, the same for
    `save_any_names_but_these` and `save_anything_except_these_names`, and a string such as
    `"hidden"` for the lists that `save_and_offload_only_these_names` takes.

    ## Why is this bad?
    The first three take each name as an argument. A tuple counts as one name, which no value has,
    so nothing matches, silently. A list or a set raises a `TypeError`, as it has no hash. The last
    takes lists, and a string as the list of its letters: values named `h`, `i`, `d` match,
    `hidden` does not, and there is no warning.

    ## Use instead
    `save_only_these_names("a", "b")`, or `save_only_these_names(*NAMES)`, and a list of one name:
    `names_which_can_be_offloaded=["hidden"]`.

    ## When is this fine?
    Never: a name is a string. A string of one letter is the list of that letter, so it is left
    alone.

    ## Is the fix safe?
    Where a list raises, yes. Elsewhere no: the names begin to match, so other values are saved or
    offloaded. None is offered where a string may hold several names.
    """

    code = "JXR203"
    name = "misread-policy-names"
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
            if made.name in apis.NAME_FACTORIES:
                yield from self._collections(facts, made)
            elif made.name == "save_and_offload_only_these_names":
                yield from self._strings(facts, made)

    def _collections(self, facts: Facts, made: FactoryCall) -> Iterator[Violation]:
        for argument in made.args:
            kind = _collection(facts, argument)
            if kind is None:
                continue
            what = policies.source_text(facts, argument)
            message = f"`{what}` is a {kind}, but each argument of `{made.name}` is one name"
            fix = _unpack(facts, argument, kind, made.name)
            yield self.report(facts, argument, message, fix=fix)

    def _strings(self, facts: Facts, made: FactoryCall) -> Iterator[Violation]:
        for keyword in _LISTS:
            node = made.keyword(keyword)
            value = facts.names.constant(node) if node is not None else None
            if node is None or not isinstance(value, str) or len(value) < 2:
                continue
            what = policies.source_text(facts, node)
            yield self.report(
                facts,
                node,
                f"`{keyword}` gets the string `{what}`, which counts as a list of its letters",
                fix=_in_list(facts, node, value),
                why="The letters are names of their own, and the name itself does not match.",
                help="put it in a list",
            )


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


def _in_list(facts: Facts, node: ast.expr, value: str) -> Fix | None:
    if re.search(r"[\s,;|]", value):
        return None
    text = facts.source.segment(facts.source.span(node))
    return Fix("Put it in a list", (edits.replace(facts.source, node, f"[{text}]"),), "unsafe")
