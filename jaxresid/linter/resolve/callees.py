"""Find which member of the families a callee is, through aliases, partials and factories."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from jaxresid.linter.resolve import apis
from jaxresid.linter.resolve.names import External, Names

# How many steps (aliases, partials, arguments) a value is followed.
MAX_DEPTH = 12


class Role(NamedTuple):
    """The entry of one of the families that a callee is.

    Attributes:
      entry: the family's own data on it, as in `apis`; None for families without data.
      bound: the partial or factory calls that already gave arguments, outermost first.
    """

    kind: Literal["checkpoint", "loop", "derivative", "transform", "custom", "name"]
    qualname: str
    entry: Any = None
    bound: tuple[ast.Call, ...] = ()


class CallArguments(NamedTuple):
    """The arguments of a call, including those that partials bound before.

    Attributes:
      dynamic: whether there are `*args` or `**kwargs` whose content is not visible.
    """

    positional: tuple[ast.expr, ...]
    keywords: dict[str, ast.keyword]
    dynamic: bool

    def get(self, position: int | None, keyword: str) -> ast.expr | None:
        """Return the argument at a position or by keyword, None where it is not part."""
        if keyword in self.keywords:
            return self.keywords[keyword].value
        if position is not None and position < len(self.positional):
            return self.positional[position]
        return None


class ImportIndex(Protocol):
    """An index of where the names that a module imports come from."""

    def canonical(self, qualname: str, importer: Path | None = None) -> str:
        """Return the name under which something is defined."""


class Callees:
    """What the callees of a module are: members of the families of `apis`."""

    def __init__(self, names: Names, project: ImportIndex | None, path: Path | None) -> None:
        self._names, self._project, self._path = names, project, path
        self._known: dict[ast.AST, tuple[Role, ...]] = {}

    def roles(self, node: ast.AST | None) -> tuple[Role, ...]:
        """Return the members of the families that a callee may be."""
        if node is None:
            return ()
        if node not in self._known:
            self._known[node] = tuple(self._roles(node))
        return self._known[node]

    def _roles(self, node: ast.AST, depth: int = 0) -> Iterator[Role]:
        if depth > MAX_DEPTH:
            return
        for origin in self._names.origins(node):
            match origin:
                case External(qualname):
                    if self._project is not None:
                        qualname = self._project.canonical(qualname, self._path)
                    role = _role(qualname)
                    if role is not None:
                        yield role
                case ast.Call():
                    yield from self._of_call(origin, depth)

    def _of_call(self, call: ast.Call, depth: int) -> Iterator[Role]:
        """Yield the roles of a call's result: those of a partial, or of a checkpoint factory."""
        for role in self._roles(call.func, depth + 1):
            if role.kind == "transform" and role.entry == "partial" and call.args:
                for inner in self._roles(call.args[0], depth + 1):
                    yield Role(inner.kind, inner.qualname, inner.entry, (call, *inner.bound))
            elif role.kind == "loop" and role.entry.factory:
                if not role.bound:
                    yield Role(role.kind, role.qualname, role.entry, (call,))
            elif role.kind in {"checkpoint", "derivative", "transform", "loop"} and not call.args:
                # `nnx.remat(policy=...)`, `eqx.filter_jit(donate="all")`: gives a decorator.
                yield Role(role.kind, role.qualname, role.entry, (call, *role.bound))

    def role(self, node: ast.AST | None, kind: str) -> Role | None:
        """Return the first role of one kind that an expression may have, None if it has none."""
        return next((r for r in self.roles(node) if r.kind == kind), None)

    def is_partial(self, call: ast.Call) -> bool:
        """Return whether a call is one of `functools.partial` or the like."""
        role = self.role(call.func, "transform")
        return role is not None and role.entry == "partial"

    def arguments(self, call: ast.Call | None, role: Role) -> CallArguments:
        """Return a call's arguments with those bound before it, or these alone without a call."""
        positional: list[ast.expr] = []
        keywords: dict[str, ast.keyword] = {}
        dynamic = False
        for part in (*reversed(role.bound), *((call,) if call is not None else ())):
            args = part.args
            if part in role.bound and self.is_partial(part):
                args = args[1:]
            for arg in args:
                if isinstance(arg, ast.Starred):
                    dynamic = True
                    break
                positional.append(arg)
            for keyword in part.keywords:
                if keyword.arg is not None:
                    keywords[keyword.arg] = keyword
                else:
                    known = self._unpacked(keyword.value)
                    if known is None:
                        dynamic = True
                    else:
                        keywords.update(known)
        return CallArguments(tuple(positional), keywords, dynamic)

    def _unpacked(self, node: ast.expr) -> dict[str, ast.keyword] | None:
        origin = self._names.single_origin(node)
        match origin:
            case ast.Dict():
                keywords: dict[str, ast.keyword] = {}
                for key, value in zip(origin.keys, origin.values, strict=True):
                    if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                        return None
                    keyword = ast.keyword(arg=key.value, value=value)
                    keywords[key.value] = ast.copy_location(keyword, value)
                return keywords
            case ast.Call(func=ast.Name(id="dict"), args=[]) if all(
                k.arg is not None for k in origin.keywords
            ):
                return {k.arg: k for k in origin.keywords if k.arg is not None}
        return None


def _role(qualname: str) -> Role | None:
    if qualname in apis.CHECKPOINTS:
        return Role("checkpoint", qualname, apis.CHECKPOINTS[qualname])
    loop = apis.loop(qualname)
    if loop is not None:
        return Role("loop", qualname, loop)
    if qualname in apis.DERIVATIVES:
        return Role("derivative", qualname, apis.DERIVATIVES[qualname])
    if qualname in apis.TRANSFORMS:
        return Role("transform", qualname, apis.TRANSFORMS[qualname])
    if qualname in apis.CUSTOM_RULES:
        return Role("custom", qualname)
    if qualname in apis.CHECKPOINT_NAMES:
        return Role("name", qualname)
    return None
