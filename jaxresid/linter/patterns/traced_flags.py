"""Find the Python flags and strings that a checkpoint traces.

A checkpoint traces every argument that is not static, by position or by keyword. A string is no
JAX type and raises at once; a bool or a number becomes an array, and raises where the function
needs its truth.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from jaxresid.linter.patterns import branches, checkpoint_calls, static_arguments
from jaxresid.linter.patterns.static_arguments import Signature, VisibleCall

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

Kind = Literal["flag", "string"]

_TRACING = frozenset({"jax", "linen", "partitioning", "nnx", "haiku"})
_FLAGS = frozenset(
    """
    train training is_training is_train deterministic inference evaluate is_eval
    use_running_average
    """.split()
)


@dataclass(frozen=True, eq=False, slots=True)
class TracedFlag:
    """An argument that a checkpoint traces although the function needs a Python value.

    Attributes:
      index: its position as the API counts, None where it can be given by keyword alone.
      kind: `string`, or `flag` where the function needs its truth.
      given: the call that gives it, None where every call does and none is visible.
      asked: the expression that needs its truth, for flags.
    """

    name: str
    index: int | None
    kind: Kind
    given: ast.Call | None
    asked: ast.expr | None
    by_keyword: bool


class TracedFlags(NamedTuple):
    """The flags and strings that a site traces, and the positions that should be static."""

    home: Facts
    flags: tuple[TracedFlag, ...]
    static: tuple[int, ...]


def traced_flags(facts: Facts, site: Site) -> TracedFlags | None:
    """Return the flags and strings that a site traces, None where none is seen."""
    if site.api.library not in _TRACING or site.api.loop or site.arguments.dynamic:
        return None
    if "static_argnames" in site.arguments.keywords:
        return None  # whose effect depends on the version of JAX
    if checkpoint_calls.definite_site_api(facts, site) is None:
        return None
    signature = static_arguments.signature(facts, site)
    static = static_arguments.static_indices(facts, site)
    is_prepared = checkpoint_calls.is_error_expected(facts, site.node)
    if signature is None or static is None or is_prepared:
        return None
    marked = {i + len(signature.parameters) if i < 0 else i for i in static}
    calls = static_arguments.visible_calls(facts, site)
    flags: list[TracedFlag] = []
    for index, parameter in enumerate(signature.parameters):
        is_self = index == 0 and signature.home.names.class_of(signature.function) is not None
        if index not in marked and not is_self:
            flags += _traced(facts, site, signature, parameter, index, calls)
    for parameter in signature.function.args.kwonlyargs:
        flags += _traced(facts, site, signature, parameter, None, calls)
    if not flags:
        return None
    kept = {
        i
        for i in marked & set(range(len(signature.parameters)))
        if not static_arguments.is_array(signature, signature.parameters[i])
    }
    needed = kept | {f.index for f in flags if f.index is not None}
    return TracedFlags(signature.home, tuple(flags), tuple(sorted(needed)))


def _traced(
    facts: Facts,
    site: Site,
    signature: Signature,
    parameter: ast.arg,
    index: int | None,
    calls: list[VisibleCall],
) -> Iterator[TracedFlag]:
    values = [
        (call, value, by_keyword)
        for call in calls
        for value, by_keyword in _values(site, call, parameter.arg, index)
    ]
    if len(values) < len(calls):
        values = [g for g in values if not static_arguments.is_under_condition(facts, g[0].call)]
    asked = branches.decision(signature.home, signature.function, parameter.arg)
    for call, value, by_keyword in values:
        kind = _kind(facts, signature, parameter, value)
        if kind == "string" or (kind == "flag" and asked is not None):
            asked = asked if kind == "flag" else None
            yield TracedFlag(parameter.arg, index, kind, call.call, asked, by_keyword)
            return
    if calls or asked is None or index is None or parameter.arg in signature.defaults:
        return
    if _annotated(parameter) == "flag" and site.api.library != "partitioning":
        yield TracedFlag(parameter.arg, index, "flag", None, asked, False)


def _values(
    site: Site, passed: VisibleCall, name: str, index: int | None
) -> Iterator[tuple[ast.expr, bool]]:
    position = index - passed.shift if index is not None else -1
    if 0 <= position < len(passed.call.args):
        yield passed.call.args[position], False
    if site.api.library == "partitioning":
        return  # drops keywords
    for keyword in passed.call.keywords:
        if keyword.arg == name:
            yield keyword.value, True


def _kind(facts: Facts, signature: Signature, parameter: ast.arg, value: ast.expr) -> Kind | None:
    known = facts.names.constant(value)
    if known is not ...:
        if isinstance(known, str):
            return "string"
        return "flag" if isinstance(known, (bool, int, float)) else None
    if isinstance(value, ast.JoinedStr):
        return "string"
    if isinstance(value, ast.Compare) or (
        isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    ):
        return "flag"
    default = signature.defaults.get(parameter.arg)
    return (
        _declared(facts, value)
        or _annotated(parameter)
        or _of_default(default)
        or ("flag" if parameter.arg in _FLAGS else None)
    )


def _declared(facts: Facts, value: ast.expr) -> Kind | None:
    """Return what the annotation or the default of a parameter or a field says about a value."""
    match value:
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            owner = facts.names.class_around(value)
            for statement in owner.body if owner is not None else ():
                match statement:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                        if name == attr:
                            return _of_annotation(annotation)
        case ast.Name():
            bindings = facts.names.bindings(value)
            if [b.kind for b in bindings] == ["param"] and isinstance(bindings[0].node, ast.arg):
                return _annotated(bindings[0].node) or _of_default(bindings[0].value)
    return None


def _annotated(parameter: ast.arg) -> Kind | None:
    return _of_annotation(parameter.annotation) if parameter.annotation is not None else None


def _of_annotation(annotation: ast.expr) -> Kind | None:
    text = ast.unparse(annotation).strip("'\"")
    if text == "bool":
        return "flag"
    return "string" if text == "str" or text.startswith(("Literal['", "typing.Literal['")) else None


def _of_default(default: ast.expr | None) -> Kind | None:
    match default:
        case ast.Constant(value=bool()):
            return "flag"
        case ast.Constant(value=str()):
            return "string"
    return None
