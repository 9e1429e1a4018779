"""Find out under what code runs: a derivative, a staged loop, a custom derivative rule."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from jaxresid.linter.resolve import alternatives
from jaxresid.linter.resolve.callees import ImportIndex
from jaxresid.linter.resolve.names import Definition, FunctionNode
from jaxresid.linter.resolve.sites import Site, Sites
from jaxresid.linter.resolve.uses import PLAIN, Flows, RemoteUse, Use

# How many callers, or functions around one another, are followed up; beyond them is unknown.
_MAX_CALLERS = 50
# How many functions and classes around a call other modules are asked about.
_MAX_NAMES = 8
# Where a class makes what its other methods call.
_SET_UP = frozenset({"setup", "__init__"})


@dataclass(slots=True)
class Context:
    """The context in which the code at a place runs, as far as the module shows.

    Attributes:
      rule: whether it belongs to a custom derivative rule.
      only_rule: whether nothing runs it but such rules, which are not differentiated.
      python_loop: whether a Python loop, or comprehension, repeats it where it is written.
      unknown: whether some caller is not visible.
    """

    reverse: bool = False
    forward: bool = False
    loop: bool = False
    branch: bool = False
    checkpoint: bool = False
    rule: bool = False
    only_rule: bool = False
    unknown: bool = False
    python_loop: bool = False


class Around(NamedTuple):
    """What runs a call, where this module shows nothing around it but functions and checkpoints.

    Attributes:
      sites: one of the checkpoints of the functions or classes that contain the call; empty where
        only other modules may have one.
      names: the functions and classes that contain it, by their dotted names, which other modules
        may use.
      unused: those among them that this module does not use: only others can run the call.
    """

    sites: tuple[Site, ...] = ()
    names: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


class Callers(ImportIndex, Protocol):
    """An index of what other modules do with the functions of one."""

    def remote_uses(self, qualname: str, home: Path | None = None) -> tuple[RemoteUse, ...]:
        """Return what the other modules do with a function."""


class Contexts:
    """Under what the code of a module runs, callers in other modules included.

    Args:
      remote: whether this module is itself looked at for another, and so asks no further.
    """

    _depth = 0

    def __init__(
        self,
        sites: Sites,
        flows: Flows,
        project: Callers | None,
        path: Path | None,
        *,
        remote: bool,
    ) -> None:
        self._sites, self._names, self._flows = sites, sites.names, flows
        self._project, self._path, self._remote = project, path, remote
        self._contexts: dict[ast.AST, Context] = {}
        self._arounds: dict[FunctionNode, Around | None] = {}

    def at(self, node: ast.AST) -> Context:
        """Return the context in which the code at `node` runs."""
        context = Context()
        for parent, child in self._names.path(node, inside=True):
            if isinstance(parent, (ast.For, ast.While, ast.AsyncFor)) and (
                child in parent.body or child in parent.orelse
            ):
                context.python_loop = True
            if isinstance(parent, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
                context.python_loop = True
        function = self._names.function(node)
        if function is not None:
            outer = self._function_context(function)
            _merge(context, outer)
            context.only_rule = outer.only_rule
        return context

    def _function_context(self, function: FunctionNode) -> Context:
        cached = self._contexts.get(function)
        if cached is not None:
            return cached
        if self._depth >= _MAX_CALLERS:
            return Context(unknown=True)
        context = Context()
        self._contexts[function] = context  # recursion sees what is known so far
        self._depth += 1
        try:
            self._fill(function, context)
        finally:
            self._depth -= 1
        return context

    def _fill(self, function: FunctionNode, context: Context) -> None:
        uses = self._flows.uses(function)
        for use in uses:
            if use.kind == "checkpoint":
                context.checkpoint = True
                site = self._sites.site_of(use.node)
                for after in self._flows.site_uses(site) if site is not None else ():
                    self._add(context, after)
            else:
                self._add(context, use)
        enclosing = self._names.function(function)
        elsewhere = self.remote_uses(function) if enclosing is None else ()
        context.only_rule = self._has_custom_vjp(function) or (
            bool(uses or elsewhere)
            and all(is_rule(use, self.at(use.node)) for use in uses)
            and all(use.in_rule for use in elsewhere)
        )
        if enclosing is not None:
            # A function made inside another runs under whatever that one runs under.
            outer = self._function_context(enclosing)
            _merge(context, outer)
            context.only_rule |= outer.only_rule
        else:
            self._add_remote(elsewhere, function, context)

    def _has_custom_vjp(self, function: FunctionNode) -> bool:
        return not isinstance(function, ast.Lambda) and any(
            not role.qualname.endswith("jvp")
            for decorator in function.decorator_list
            for role in self._sites.callees.roles(decorator)
            if role.kind == "custom"
        )

    def _add(self, context: Context, use: Use) -> None:
        match use.kind:
            case "derivative" if use.mode == "reverse":
                context.reverse = True
            case "derivative":
                context.forward = True
            case "loop":
                if use.api is not None and use.api.kind == "branch":
                    context.branch = True
                else:
                    context.loop = True
                _merge(context, self.at(use.node))
            case "call":
                _merge(context, self.at(use.node))
            case "rule":
                context.rule = True
            case "returned" | "escapes":
                context.unknown = True

    def _add_remote(
        self, uses: tuple[RemoteUse, ...], function: FunctionNode, context: Context
    ) -> None:
        for use in uses:
            match use.kind:
                case "derivative":
                    context.reverse = True
                case "loop":
                    context.loop = True
                case "rule":
                    context.rule = True
                case "escapes" | "returned":
                    context.unknown = True
            context.loop = context.loop or use.in_loop
            if use.in_reverse:
                context.reverse = True

    def around(self, use: Use) -> Around | None:
        """Return what runs a call, None where that is or may be more than a checkpoint.

        An instance that a class makes in its `setup` is called where its methods call it.
        """
        if use.kind != "call" or not PLAIN.issuperset(use.through):
            return None
        function = self._names.function(use.node)
        func = use.node.func if isinstance(use.node, ast.Call) else None
        callee = getattr(func, "attr", getattr(func, "id", ""))
        if getattr(function, "name", "") in _SET_UP and callee[:1].isupper():
            functions = [
                self._names.function(u.node)
                if u.kind == "call" and PLAIN.issuperset(u.through)
                else None
                for u in self._flows.uses(use.node)
            ]
            if not functions or function in functions:
                return None
        else:
            functions = [function]
        return _together(
            self._around_function(f) if f is not None else None for f in dict.fromkeys(functions)
        )

    def _around_function(self, function: FunctionNode) -> Around | None:
        if function not in self._arounds:
            self._arounds[function] = None  # what a cycle sees
            if self._depth < _MAX_CALLERS:
                self._depth += 1
                try:
                    self._arounds[function] = self._find_around(function)
                finally:
                    self._depth -= 1
        return self._arounds[function]

    def _find_around(self, function: FunctionNode) -> Around | None:
        uses, owner = self._flows.uses(function), self._names.class_of(function)
        called = owner is not None and getattr(function, "name", "") == "__call__"
        if owner is not None and called:
            uses = (*uses, *self._flows.uses(owner))
        shared: Definition | None = owner if called else function if owner is None else None
        name = self._names.qualname(shared) if shared is not None else None
        names = (name,) if name is not None else ()
        uses = tuple(
            use
            for use in uses
            if not alternatives.replaces_checkpoint(
                self._sites, use.node, lambda t: t is not None and t in (function, owner)
            )
        )
        if not uses:
            return Around((), names, names) if names else None
        parts: list[Around | None] = [Around((), names)]
        for use in uses:
            if use.kind == "checkpoint" and PLAIN.issuperset(use.through):
                site = self._sites.site_of(use.node)
                inside = Around((site,)) if site and not site.api.loop else None
                if site is not None and site.definition is function:
                    return inside  # whoever calls it
                parts.append(inside)
            else:
                parts.append(self.around(use))
        return _together(parts)

    def remote_uses(self, definition: Definition) -> tuple[RemoteUse, ...]:
        """Return what the other modules of the project do with a definition of this one."""
        if self._project is None or self._remote or self._names.class_of(definition) is not None:
            return ()  # a method is reached through instances, which nobody can follow
        qualname = self._names.qualname(definition)
        if qualname is None:
            return ()
        return self._project.remote_uses(qualname, self._path)

    @cached_property
    def _imported_loads(self) -> dict[str, tuple[ast.expr, ...]]:
        """The places that may read something of another module, by its own name there."""
        by_last: dict[str, list[ast.expr]] = {}
        for attribute in self._names.attributes:
            by_last.setdefault(attribute.attr, []).append(attribute)
        for name, bindings in sorted(self._names.root.bindings.items()):
            for last in {b.qualname.rpartition(".")[2] for b in bindings if b.kind == "import"}:
                by_last.setdefault(last, []).extend(self._names.loads.get(name, ()))
        return {last: tuple(dict.fromkeys(nodes)) for last, nodes in by_last.items()}

    def external_loads(self, last: str) -> dict[str, list[ast.expr]]:
        """Return where this module reads what has this last name in others, by its dotted names."""
        assert self._project is not None
        by_name: dict[str, list[ast.expr]] = {}
        for node in self._imported_loads.get(last, ()):
            qualnames = self._names.qualnames(node)
            for name in {self._project.canonical(q, self._path) for q in qualnames}:
                by_name.setdefault(name, []).append(node)
        return by_name

    @property
    def imported_words(self) -> Set[str]:
        """What `external_loads` has an answer for."""
        return self._imported_loads.keys()


def is_rule(use: Use, context: Context) -> bool:
    """Return whether a use is, or is only in, a rule of a custom derivative."""
    return use.kind == "rule" or "custom" in use.through or context.only_rule


def _together(parts: Iterable[Around | None]) -> Around | None:
    """Return what is around each of some calls, None where that is not known of one of them."""
    known = []
    for part in parts:
        if part is None:
            return None
        known.append(part)
    sites = tuple(site for part in known for site in part.sites)
    names = tuple(dict.fromkeys(name for part in known for name in part.names))
    unused = tuple(dict.fromkeys(name for part in known for name in part.unused))
    return Around(sites[:1], names, unused) if len(names) <= _MAX_NAMES else None


def _merge(context: Context, other: Context) -> None:
    if other is context:
        return
    context.reverse |= other.reverse
    context.forward |= other.forward
    context.loop |= other.loop
    context.branch |= other.branch
    context.checkpoint |= other.checkpoint
    context.rule |= other.rule
    context.unknown |= other.unknown
