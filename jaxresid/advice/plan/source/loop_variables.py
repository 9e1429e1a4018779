"""Tell what a Python loop hands from one iteration to the next, and what it leaves behind."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxresid.linter.resolve.names import FunctionNode

# Methods that change what they are called on, and return nothing worth keeping.
_CHANGING = frozenset(
    {
        *("append", "appendleft", "extend", "insert", "add", "update", "setdefault"),
        *("pop", "popleft", "remove", "discard", "clear", "sort", "reverse"),
    }
)
_LEAVING = (
    *(ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Delete),
    *(ast.Global, ast.Nonlocal, ast.ClassDef, ast.AsyncFor, ast.AsyncWith),
)


@dataclass(frozen=True, slots=True)
class LoopVariables:
    """The variables of a loop's body, each in the order in which they first occur.

    Attributes:
      carried: those that an iteration reads as an earlier one, or what is before the loop, left
        them.
      results: those that later iterations or what is after the loop may read.
    """

    carried: tuple[str, ...]
    results: tuple[str, ...]


def loop_variables(loop: ast.For, function: FunctionNode) -> LoopVariables | str:
    """Return what a loop hands on, or the reason why its body cannot be a function."""
    reason = _unmovable(loop)
    if reason is not None:
        return reason
    body = _Body(loop.body, {n.id for n in _names(loop.target, ast.Store)})
    target = {n.id for n in _names(loop.target, ast.Store)}
    outside = _read_outside(loop, function)
    if target & outside:
        return f"{_listed(target & outside)} is read after the loop"
    if {n.id for n in _names(loop.iter, ast.Load)} & body.bound.keys():
        return "what the loop goes through changes in it"
    changed = [n for n in body.changed if n not in body.bound]
    if changed:
        return f"it changes {_listed(changed)}, which is made outside of the loop"
    carried = tuple(n for n in body.bound if n in body.exposed and n not in target)
    results = tuple(n for n in body.bound if n in {*carried, *outside} - target)
    if not results:
        return "nothing that it computes is read afterwards"
    return LoopVariables(carried, results)


def _unmovable(loop: ast.For) -> str | None:
    if loop.orelse:
        return "it has an else"
    for node in _own(loop.body):
        if isinstance(node, _LEAVING):
            return f"it holds a {type(node).__name__.lower()}"
        if isinstance(node, ast.Call) and _name(node.func) == "next":
            return "next() gives something else each time"
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            return "a string in it has several lines"
    if any(isinstance(node, ast.Break) for node in _own(loop.body, ast.For, ast.While)):
        return "it holds a break"
    return None


def _own(nodes: Iterable[ast.AST], *without: type[ast.AST]) -> Iterator[ast.AST]:
    """Yield nodes with all inside them, but for what is inside functions and the given types."""
    for node in nodes:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, *without)):
            yield from _own(ast.iter_child_nodes(node), *without)


def _read_outside(loop: ast.For, function: FunctionNode) -> set[str]:
    """Return the names that may be read after a loop, or before it in another round around it."""
    inside = {id(node) for node in ast.walk(loop)}
    around = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.For | ast.While) and node is not loop and _holds(node, loop)
    ]
    again = {id(node) for outer in around for node in ast.walk(outer)}
    later = {
        id(node)
        for inner in ast.walk(function)
        if isinstance(inner, ast.FunctionDef | ast.Lambda) and inner is not function
        for node in ast.walk(inner)
    }
    end = loop.end_lineno or loop.lineno
    return {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and id(node) not in inside
        and (node.lineno > end or id(node) in again or id(node) in later)
    }


def _holds(outer: ast.AST, inner: ast.AST) -> bool:
    return any(node is inner for node in ast.walk(outer))


def _names(node: ast.AST, ctx: type[ast.expr_context]) -> Iterator[ast.Name]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ctx):
            yield child


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _root(node: ast.expr) -> str:
    """Return the name that an attribute or an element is of: `self` of `self.cache["k"]`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return _name(node)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


class _Body:
    """What the statements of a loop's body do with names.

    Attributes:
      bound: the names that they give values, in the order of the source.
      exposed: those that are read before they are sure to have a value.
      changed: the names of objects that they change in place.
    """

    def __init__(self, body: Sequence[ast.stmt], assigned: set[str]) -> None:
        self.bound: dict[str, None] = {}
        self.exposed: set[str] = set()
        self.changed: dict[str, None] = {}
        self._block(body, assigned)

    def _block(self, body: Iterable[ast.stmt], assigned: set[str]) -> set[str]:
        """Go through statements; return the names that are sure to have a value after them."""
        for statement in body:
            assigned = self._statement(statement, assigned)
        return assigned

    def _statement(self, node: ast.stmt, assigned: set[str]) -> set[str]:
        match node:
            case ast.AugAssign(target=target, value=value):
                self._read(value, assigned)
                if isinstance(target, ast.Name):
                    self._read_name(target.id, assigned)
                return self._bind(target, assigned)
            case ast.Assign(targets=targets, value=value):
                assigned = self._read(value, assigned)
                for one_target in targets:
                    assigned = self._bind(one_target, assigned)
                return assigned
            case ast.AnnAssign(target=target, value=value):
                return (
                    assigned if value is None else self._bind(target, self._read(value, assigned))
                )
            case ast.If(test=test, body=body, orelse=orelse):
                assigned = self._read(test, assigned)
                return self._block(body, assigned) & self._block(orelse, assigned)
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                assigned = self._read(iterated, assigned)
                self._block(body, self._bind(target, assigned))
                self._block(orelse, assigned)
                return assigned
            case ast.While(test=test, body=body, orelse=orelse):
                assigned = self._read(test, assigned)
                self._block(body, assigned)
                self._block(orelse, assigned)
                return assigned
            case ast.With(items=items, body=body):
                for item in items:
                    assigned = self._read(item.context_expr, assigned)
                    if item.optional_vars is not None:
                        assigned = self._bind(item.optional_vars, assigned)
                return self._block(body, assigned)
            case ast.FunctionDef(name=name):
                self._read(node, assigned)
                self.bound.setdefault(name)
                return assigned | {name}
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                imported = {(a.asname or a.name).partition(".")[0] for a in names}
                self.bound.update(dict.fromkeys(imported))
                return assigned | imported
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=attr)) as call):
                if attr in _CHANGING and _root(owner):
                    self.changed.setdefault(_root(owner))
                return self._read(call, assigned)
        # What else there is may run in part: what it binds is not sure to have a value.
        self._read(node, assigned)
        self.bound.update({one_target.id: None for one_target in _names(node, ast.Store)})
        return assigned

    def _bind(self, target: ast.expr, assigned: set[str]) -> set[str]:
        if isinstance(target, ast.Name):
            self.bound.setdefault(target.id)
            return assigned | {target.id}
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                assigned = self._bind(element, assigned)
            return assigned
        if isinstance(target, ast.Starred):
            return self._bind(target.value, assigned)
        if _root(target):
            self.changed.setdefault(_root(target))
        return self._read(target, assigned)

    def _read(self, node: ast.AST, assigned: set[str]) -> set[str]:
        """Take in what is read, in order; return what is known after it."""
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                self._read_name(name, assigned)
            case ast.NamedExpr(target=target, value=value):
                return self._bind(target, self._read(value, assigned))
            case ast.Lambda() | ast.FunctionDef():
                arguments = node.args
                for default in (*arguments.defaults, *arguments.kw_defaults):
                    if default is not None:
                        assigned = self._read(default, assigned)
                own = {a.arg for a in ast.walk(arguments) if isinstance(a, ast.arg)}
                body = [node.body] if isinstance(node, ast.Lambda) else node.body
                own |= {n.id for inner in body for n in _names(inner, ast.Store)}
                for inner in body:
                    self._read(inner, assigned | own)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                assigned = self._read(node.generators[0].iter, assigned)
                own = {n.id for g in node.generators for n in _names(g.target, ast.Store)}
                first, *others = node.generators
                rest = [*first.ifs, *others]
                rest += [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
                for inner_node in rest:
                    self._read(inner_node, assigned | own)
            case _:
                for part in ast.iter_child_nodes(node):
                    assigned = self._read(part, assigned)
        return assigned

    def _read_name(self, name: str, assigned: set[str]) -> None:
        if name not in assigned:
            self.exposed.add(name)
