"""Take away a wrapper, and leave the code that a person would leave."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxresid.base.violations import Applicability, Edit, Fix, Span

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

# What keeps its meaning anywhere, without brackets around it.
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant)
# What binds names of its own, or whose parts have no places of their own.
_OPAQUE = (
    *(ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.JoinedStr),
)


def remove_checkpoint(
    facts: Facts, site: Site, applicability: Applicability = "unsafe"
) -> Fix | None:
    """Return the fix that removes a checkpoint and leaves what it wraps, None where it cannot."""
    edit = None
    if site.definition is not None:
        edit = remove_decorator(facts, site.node)
    elif isinstance(site.node, ast.Call) and site.target is not None:
        edit = unwrap(facts, site.node, site.target)
    return Fix("Remove the checkpoint", (edit,), applicability) if edit is not None else None


def remove_decorator(facts: Facts, decorator: ast.expr) -> Edit | None:
    """Return the edit that removes a decorator and its line, None where other code is on it."""
    span = facts.source.span(decorator)
    before = facts.source.lines[span.row - 1][: span.column]
    return _remove_rows(facts, span) if before.strip() == "@" else None


def unwrap(facts: Facts, call: ast.Call, inner: ast.expr) -> Edit | None:
    """Return the edit that replaces a call by one of its arguments, None where it would read badly.

    A choice between the call and its argument becomes the argument, a name that would be assigned
    to itself is not assigned, and the body of a lambda takes the place of its call.
    """
    parent = next(facts.names.ancestors(call), None)
    if isinstance(parent, ast.IfExp) and call is not parent.test:
        other = parent.orelse if call is parent.body else parent.body
        if ast.dump(other) == ast.dump(inner) and not _has(parent.test, _OPAQUE):
            return Edit(facts.source.span(parent), _bracketed(facts, inner))
    if isinstance(parent, ast.Call) and parent.func is call and isinstance(inner, ast.Lambda):
        return _inline(facts, parent, inner)
    if isinstance(parent, ast.Assign) and isinstance(inner, (ast.Name, ast.Attribute)):
        targets = [ast.unparse(target) for target in parent.targets]
        if targets == [ast.unparse(inner)]:
            return _remove_statement(facts, parent)
    text = facts.source.segment(facts.source.span(inner))
    if isinstance(parent, (ast.Assign, ast.Return)) and "\n" not in text:
        return Edit(facts.source.span(call), text)  # nothing around it binds
    return Edit(facts.source.span(call), _bracketed(facts, inner))


def _bracketed(facts: Facts, inner: ast.expr) -> str:
    """Return the text of an expression, in brackets unless it keeps its meaning without them."""
    text = facts.source.segment(facts.source.span(inner))
    # It may need the brackets that are taken away to go on over lines.
    if not isinstance(inner, _ATOMS) or ("\n" in text and not text.endswith((")", "]"))):
        return f"({text})"
    return text


def _remove_statement(facts: Facts, statement: ast.stmt) -> Edit | None:
    """Return the edit that removes a statement, with an `if` that holds nothing else."""
    around = next(facts.names.ancestors(statement), None)
    if isinstance(around, ast.If) and around.body == [statement]:
        is_part = isinstance(next(facts.names.ancestors(around), None), ast.If)  # an `elif`, say
        if around.orelse or is_part or _has(around.test, _OPAQUE):
            return None
        statement = around
    else:
        bodies = (getattr(around, name, None) for name in ("body", "orelse", "finalbody"))
        if any(body == [statement] for body in bodies):
            return None
    span = facts.source.span(statement)
    before = facts.source.lines[span.row - 1][: span.column]
    return None if before.strip() else _remove_rows(facts, span)


def _remove_rows(facts: Facts, span: Span) -> Edit | None:
    """Return the edit that removes the rows of a span, None where a comment or code is on them."""
    source = facts.source
    after = source.lines[span.end_row - 1][span.end_column :]
    inside = source.segment(span)
    if after.strip() or "#" in inside:  # a comment belongs to somebody
        return None
    return Edit(Span(span.row, 0, span.end_row + 1, 0), "")


def _inline(facts: Facts, call: ast.Call, function: ast.Lambda) -> Edit | None:
    """Return the edit that puts the body of a lambda in the place of a call to it."""
    given = _arguments(call, function)
    if given is None or _has(function.body, _OPAQUE):
        return None
    source = facts.source
    names = [n for n in ast.walk(function.body) if isinstance(n, ast.Name) and n.id in given]
    for name, argument in given.items():
        is_simple = isinstance(argument, (ast.Name, ast.Constant))
        if not is_simple and sum(n.id == name for n in names) != 1:
            return None  # evaluated as often as before
    span = source.span(function.body)
    begin = source.start(span)
    text = source.segment(span)
    for node in sorted(names, key=lambda n: -source.start(source.span(n))):
        place = source.span(node)
        start, end = source.start(place) - begin, source.end(place) - begin
        text = text[:start] + _bracketed(facts, given[node.id]) + text[end:]
    alone = isinstance(function.body, _ATOMS) or _is_bracketed(facts, call)
    if not alone or "\n" in text:
        text = f"({text})"
    return Edit(source.span(call), text)


def _arguments(call: ast.Call, function: ast.Lambda) -> dict[str, ast.expr] | None:
    """Return the arguments of a call by the names of a lambda; None unless all are simple."""
    parameters = function.args
    if (
        call.keywords
        or parameters.kwonlyargs
        or parameters.defaults
        or parameters.vararg
        or parameters.kwarg
        or any(isinstance(argument, ast.Starred) for argument in call.args)
    ):
        return None
    names = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    if len(names) != len(call.args):
        return None
    return dict(zip(names, call.args, strict=True))


def _is_bracketed(facts: Facts, node: ast.expr) -> bool:
    """Return whether an expression may be any other without brackets of its own."""
    match next(facts.names.ancestors(node), None):
        case ast.Return() | ast.Assign() | ast.AnnAssign() | ast.keyword() | ast.Lambda():
            return True
        case ast.Call(args=arguments):
            return node in arguments
        case _:
            return False


def _has(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    return any(isinstance(part, kinds) for part in ast.walk(node))
