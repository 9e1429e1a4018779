"""Tell which places of the code never run together, by the conditions around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.linter.patterns.policy_names import source_text

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


# What a block ends with that is left before what follows it.
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class Condition(NamedTuple):
    """A test around a place, and whether it holds there."""

    test: ast.expr
    holds: bool


def around(facts: Facts, node: ast.AST) -> Iterator[Condition]:
    """Yield the conditions of a place, innermost first; an `if` that returned before counts."""
    for parent, child in facts.names.path(node):
        if isinstance(child, ast.stmt):
            for before in _before(parent, child):
                if before.body and isinstance(before.body[-1], _LEAVES) and not before.orelse:
                    yield plain(before.test, False)
        match parent:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return
            case ast.If(test=test, body=body) if child is not test:
                yield plain(test, child in body)
            case ast.IfExp(test=test, body=chosen) if child is not test:
                yield plain(test, child is chosen)


def _before(parent: ast.AST, child: ast.stmt) -> Iterator[ast.If]:
    """Yield the `if` statements of the same block before a statement, the nearest first."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and child in block:
            yield from (s for s in reversed(block[: block.index(child)]) if isinstance(s, ast.If))


def exclude_one_another(facts: Facts, one: ast.AST, other: ast.AST) -> bool:
    """Return whether the conditions of two places certainly never hold together."""
    return next(excluding(facts, one, other), None) is not None


def excluding(facts: Facts, one: ast.AST, other: ast.AST) -> Iterator[Condition]:
    """Yield the conditions of one place that those of another certainly exclude."""
    others = [*around(facts, other)]
    for condition in around(facts, one):
        if any(_contradict(facts, condition, another) for another in others):
            yield condition


def text(facts: Facts, condition: Condition) -> str:
    """Return the text of the test of a condition, as it is written."""
    match condition.test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[value]):
            return f"{source_text(facts, left)} == {source_text(facts, value)}"
    return source_text(facts, condition.test)


def negated(facts: Facts, condition: Condition) -> str:
    """Return the text of an expression that is true where a condition does not hold."""
    test, written = condition.test, text(facts, condition)
    if not condition.holds:
        return written
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[value]):
            return f"{source_text(facts, left)} != {source_text(facts, value)}"
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return f"not {written}"
    return f"not ({written})"


def is_known_at(facts: Facts, test: ast.expr, place: ast.expr) -> bool:
    """Return whether an expression means the same at another place, which runs before it."""
    function = facts.names.function(place)
    for node in ast.walk(test):
        if not isinstance(node, ast.Name):
            continue
        if node.id == "self":
            if facts.names.class_around(node) is not facts.names.class_around(place):
                return False
            continue
        bindings = facts.names.bindings(node)
        if len(bindings) != 1 or bindings[0].owner is not function:
            return False
        before = facts.names.order[bindings[0].node] < facts.names.order[place]
        if bindings[0].kind != "param" and not before:
            return False
    return _is_pure(test)


def _is_pure(test: ast.expr) -> bool:
    return not any(isinstance(n, (ast.Call, ast.NamedExpr, ast.Await)) for n in ast.walk(test))


def plain(test: ast.expr, holds: bool) -> Condition:
    """Return a condition without `not` and `!=`."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, not holds
    match test:
        case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[value]):
            equal = ast.Compare(left=left, ops=[ast.Eq()], comparators=[value])
            return Condition(ast.copy_location(equal, test), not holds)
    return Condition(test, holds)


def _contradict(facts: Facts, one: Condition, other: Condition) -> bool:
    if one.test is other.test:
        return one.holds != other.holds
    if not _means_the_same(facts, one.test, other.test):
        return False
    if ast.dump(one.test) == ast.dump(other.test):
        return one.holds != other.holds
    match one.test, other.test:
        case (
            ast.Compare(left=a, ops=[ast.Eq()], comparators=[ast.Constant(value=x)]),
            ast.Compare(left=b, ops=[ast.Eq()], comparators=[ast.Constant(value=y)]),
        ) if ast.dump(a) == ast.dump(b):
            return one.holds and other.holds and x != y
    return False


def _means_the_same(facts: Facts, one: ast.expr, other: ast.expr) -> bool:
    if not _is_pure(one) or not _is_pure(other):
        return False
    functions = {facts.names.function(n) for t in (one, other) for n in ast.iter_child_nodes(t)}
    stored = {
        ast.unparse(a)
        for a in facts.names.attributes
        if isinstance(a.ctx, ast.Store) and facts.names.function(a) in functions
    }
    meanings: list[dict[str, object]] = []
    for test in (one, other):
        known: dict[str, object] = {}
        for node in ast.walk(test):
            match node:
                case ast.Attribute() if ast.unparse(node) in stored:
                    return False
                case ast.Name(id="self"):
                    known["self"] = facts.names.class_around(node)
                case ast.Name(id=name):
                    bindings = facts.names.bindings(node)
                    if len(bindings) > 1:
                        return False
                    known[name] = bindings
        meanings.append(known)
    return meanings[0] == meanings[1]
