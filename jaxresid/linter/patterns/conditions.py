"""Tell which places of a function never run in the same call, by the conditions around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class Condition(NamedTuple):
    """A test around a place, and whether it holds there."""

    test: ast.expr
    holds: bool


def around(facts: Facts, node: ast.AST) -> Iterator[Condition]:
    """Yield the conditions under which a place of a function runs, innermost first."""
    child = node
    for parent in facts.names.ancestors(node):
        match parent:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return
            case ast.If(test=test, body=body) if child is not test:
                yield _plain(test, child in body)
            case ast.IfExp(test=test, body=chosen) if child is not test:
                yield _plain(test, child is chosen)
        child = parent


def exclude_one_another(facts: Facts, one: ast.AST, other: ast.AST) -> bool:
    """Return whether the conditions of two places of a function certainly never hold together."""
    return any(_contradict(facts, a, b) for a in around(facts, one) for b in around(facts, other))


def _plain(test: ast.expr, holds: bool) -> Condition:
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
    """Return whether the names of two tests have the same values at both places."""
    function = facts.names.function(next(ast.iter_child_nodes(one), one))
    stored = {
        ast.unparse(a)
        for a in facts.names.attributes
        if isinstance(a.ctx, ast.Store) and facts.names.function(a) is function
    }
    found: list[dict[str, object]] = []
    for test in (one, other):
        known: dict[str, object] = {}
        for node in ast.walk(test):
            match node:
                case ast.Call() | ast.NamedExpr() | ast.Await():
                    return False
                case ast.Attribute() if ast.unparse(node) in stored:
                    return False
                case ast.Name(id=name):
                    bindings = facts.names.bindings(node)
                    if len(bindings) > 1:
                        return False
                    known[name] = bindings
        found.append(known)
    return found[0] == found[1]
