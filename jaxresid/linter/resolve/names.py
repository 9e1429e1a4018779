"""Resolve what the names of a module refer to: imports, aliases, bindings, scopes.

One pass over the tree records who contains whom, which scope a name is looked up in, and what binds
each name; everything else is answered on demand. An expression may have several *origins* (a
conditional expression, a name bound in two branches): all are given, `None` among them where one
cannot be known.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from jaxresid.linter.text.trees import NODE_FIELDS

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# The most frequent nodes that bind nothing; the others go through a long chain of cases.
_NOTHING_TO_RECORD = frozenset(
    {ast.Constant, ast.Expr, ast.keyword, ast.arg, ast.arguments, ast.BinOp, ast.Subscript}
    | {ast.Return, ast.If, ast.Compare, ast.Tuple, ast.List, ast.alias, ast.UnaryOp, ast.BoolOp}
    | {ast.Slice, ast.Starred, ast.JoinedStr, ast.FormattedValue, ast.Raise, ast.Dict, ast.Assert}
)
_SCOPES_BY_FIELD = frozenset(
    {ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arguments}
)
# What a module calls these comes from no import where a function loads JAX: `jax, jnp = load()`.
_LOADED_MODULES = {"jax": "jax", "jnp": "jax.numpy"}
_MAX_DEPTH = 25
_MAX_STEPS = 500
# How many bindings of one name a use is followed to; more is taken for unknown.
_MAX_REACHING = 64


class External(NamedTuple):
    """Something of another module, by its full dotted name."""

    qualname: str


Origin = External | ast.AST | None


@dataclass(eq=False, slots=True)
class Binding:
    """One place that gives a name a value.

    Attributes:
      node: the statement, argument or target that binds.
      owner: the module, class, function or comprehension that the name is bound in.
      value: the expression bound, where it is one and is bound whole.
      qualname: for imports, the dotted name.
      element: whether `value` is a container, and what is bound is one of its elements.
    """

    kind: Literal["import", "def", "class", "assign", "param", "for", "other"]
    name: str
    node: ast.AST
    owner: ast.AST
    value: ast.expr | None = None
    qualname: str = ""
    element: bool = False
    order: int = 0


@dataclass(eq=False, slots=True)
class Scope:
    """A module, class, function or comprehension and the names it binds."""

    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)

    @property
    def is_class(self) -> bool:
        """Return whether this is the scope of a class body."""
        return isinstance(self.node, ast.ClassDef)


class Names:
    """The names of one module.

    Args:
      module: its dotted name, or "" where it is not known; relative imports need it.
      bodies: whether the bodies of functions count; those of methods do, as they set attributes.
    """

    def __init__(
        self, tree: ast.Module, module: str = "", is_package: bool = False, *, bodies: bool = True
    ) -> None:
        self.tree = tree
        self.module = module
        self.package = module if is_package else module.rpartition(".")[0]
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scopes: dict[ast.AST, Scope] = {}
        self.order: dict[ast.AST, int] = {}
        self.loads: dict[str, list[ast.Name]] = {}
        self.self_loads: dict[str, list[ast.Attribute]] = {}
        self.calls: list[ast.Call] = []
        self.attributes: list[ast.Attribute] = []
        self.functions: list[FunctionNode] = []
        self.classes: list[ast.ClassDef] = []
        self.names: list[ast.Name] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.star_imports: list[str] = []
        self.self_assigned: dict[tuple[ast.ClassDef, str], list[ast.expr]] = {}
        self._bindings: dict[ast.Name, tuple[Binding, ...]] = {}
        self._readers: dict[str, dict[Binding, list[ast.Name]]] = {}
        self._origins: dict[ast.AST, tuple[Origin, ...]] = {}
        self._pending: set[ast.AST] = set()
        self._steps = 0
        self._cut = False
        self.root = Scope(tree, None)
        self._build(bodies)

    # -- the pass ----------------------------------------------------------------------------

    def _build(self, bodies: bool) -> None:
        stack: list[tuple[ast.AST, Scope]] = [(self.tree, self.root)]
        order, parents = self.order, self.parents
        scopes, names, loads = self.scopes, self.names, self.loads
        counter = 0
        while stack:
            node, scope = stack.pop()
            counter += 1
            order[node] = counter
            kind = type(node)
            if isinstance(node, ast.Name):  # a quarter of all nodes, with none inside
                scopes[node] = scope
                names.append(node)
                if isinstance(node.ctx, ast.Load):
                    loads.setdefault(node.id, []).append(node)
                elif not self._known_target(node):
                    self._bind("other", node.id, node, scope)
                continue
            inner = scope if kind in _NOTHING_TO_RECORD else self._enter(node, scope)
            of_field = inner
            is_scope = kind in _SCOPES_BY_FIELD
            for name in NODE_FIELDS[kind]:
                value = getattr(node, name, None)
                if not value:
                    continue
                if is_scope:
                    if not bodies and name == "body" and self._is_outside_classes(node, scope):
                        continue
                    of_field = self._scope_of_field(node, name, scope, inner)
                if isinstance(value, list):
                    for child in reversed(value):
                        if isinstance(child, ast.AST):
                            parents[child] = node
                            stack.append((child, of_field))
                elif isinstance(value, ast.AST):
                    parents[value] = node
                    stack.append((value, of_field))

    def _is_outside_classes(self, node: ast.AST, scope: Scope) -> bool:
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        return is_function and self._class_around(scope) is None

    @staticmethod
    def _scope_of_field(node: ast.AST, name: str, scope: Scope, inner: Scope) -> Scope:
        if isinstance(node, ast.Lambda):
            return inner  # defaults hang under `args`, handled there
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return inner if name in {"body", "args", "type_params"} else scope
        if isinstance(node, ast.ClassDef):
            return inner if name == "body" else scope
        if isinstance(node, ast.arguments):
            # Defaults and annotations are looked up where the function is defined.
            return inner if name in {"args", "posonlyargs", "kwonlyargs"} else scope.parent or scope
        return inner

    def _enter(self, node: ast.AST, scope: Scope) -> Scope:
        """Record `node` and return the scope of what is inside it."""
        match node:
            case ast.Attribute():
                self.attributes.append(node)
                if isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
                    self.self_loads.setdefault(node.attr, []).append(node)
            case ast.Call():
                self.calls.append(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions.append(node)
                self.scopes[node] = scope
                self._bind("def", node.name, node, scope)
                return self._function_scope(node, scope)
            case ast.Lambda():
                self.functions.append(node)
                self.scopes[node] = scope
                return self._function_scope(node, scope)
            case ast.ClassDef():
                self.classes.append(node)
                self.scopes[node] = scope
                self._bind("class", node.name, node, scope)
                return Scope(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return Scope(node, scope)
            case ast.Import() | ast.ImportFrom():
                self.imports.append(node)
                self._import(node, scope)
            case ast.Assign():
                for target in node.targets:
                    self._target("assign", target, node.value, node, scope)
            case ast.AnnAssign() if node.value is not None:
                self._target("assign", node.target, node.value, node, scope)
            case ast.NamedExpr():
                outer = scope
                while isinstance(outer.node, _COMPREHENSIONS) and outer.parent:
                    outer = outer.parent
                self._bind("assign", node.target.id, node, outer, node.value)
            case ast.For() | ast.AsyncFor():
                self._target("for", node.target, node.iter, node, scope, element=True)
            case ast.comprehension():
                self._target("for", node.target, node.iter, node, scope, element=True)
            case ast.withitem() if node.optional_vars is not None:
                self._target("other", node.optional_vars, None, node, scope)
            case ast.ExceptHandler() if node.name:
                self._bind("other", node.name, node, scope)
            case ast.Global() | ast.Nonlocal():
                scope.outer.update(node.names)
            case ast.MatchAs() | ast.MatchStar() if node.name:
                self._bind("other", node.name, node, scope)
        return scope

    def _known_target(self, node: ast.Name) -> bool:
        """Return whether a stored name is bound already: not by `del` and augmented assignment."""
        parent = self.parents.get(node)
        return not isinstance(parent, (ast.Delete, ast.AugAssign))

    def _function_scope(self, node: FunctionNode, scope: Scope) -> Scope:
        inner = Scope(node, scope)
        args = node.args
        positional = [*args.posonlyargs, *args.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
        defaults += args.defaults
        for arg, default in [
            *zip(positional, defaults, strict=True),
            *zip(args.kwonlyargs, args.kw_defaults, strict=True),
        ]:
            self._bind("param", arg.arg, arg, inner, default)
        for star in (args.vararg, args.kwarg):
            if star is not None:
                self._bind("param", star.arg, star, inner)
        return inner

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                qualname = alias.name if alias.asname else bound
                self._bind("import", bound, node, scope, qualname=qualname)
            return
        base = imported_from(self.package, node.level, node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self.star_imports.append(base)
            else:
                qualname = f"{base}.{alias.name}" if base else alias.name
                self._bind("import", alias.asname or alias.name, node, scope, qualname=qualname)

    def _target(
        self,
        kind: Literal["assign", "for", "other"],
        target: ast.expr,
        value: ast.expr | None,
        node: ast.AST,
        scope: Scope,
        *,
        element: bool = False,
    ) -> None:
        match target:
            case ast.Name() if value is None:
                self._bind("other", target.id, node, scope)
            case ast.Name():
                self._bind(kind, target.id, node, scope, value, element=element)
            case ast.Tuple() | ast.List() if element and (
                parts := _iterates_over(value, target.elts)
            ):
                for inner, container in parts:
                    self._target(kind, inner, container, node, scope, element=True)
            case ast.Tuple() | ast.List():
                pairs: Iterable[tuple[ast.expr, ast.expr | None]] = ((t, None) for t in target.elts)
                if (
                    isinstance(value, (ast.Tuple, ast.List))
                    and not element
                    and len(value.elts) == len(target.elts)
                    and not any(isinstance(e, ast.Starred) for e in (*value.elts, *target.elts))
                ):
                    pairs = zip(target.elts, value.elts, strict=True)
                for inner, inner_value in pairs:
                    self._target(
                        "other" if inner_value is None else kind, inner, inner_value, node, scope
                    )
            case ast.Starred():
                self._target("other", target.value, None, node, scope)
            case ast.Attribute(value=ast.Name(id="self" | "cls")) if value is not None:
                owner = self._class_around(scope)
                if owner is not None and not element:
                    self.self_assigned.setdefault((owner, target.attr), []).append(value)

    @staticmethod
    def _class_around(scope: Scope | None) -> ast.ClassDef | None:
        while scope is not None:
            if isinstance(scope.node, ast.ClassDef):
                return scope.node
            scope = scope.parent
        return None

    def _bind(
        self,
        kind: Literal["import", "def", "class", "assign", "param", "for", "other"],
        name: str,
        node: ast.AST,
        scope: Scope,
        value: ast.expr | None = None,
        *,
        qualname: str = "",
        element: bool = False,
    ) -> None:
        order = len(self.order)
        binding = Binding(kind, name, node, scope.node, value, qualname, element, order)
        scope.bindings.setdefault(name, []).append(binding)

    # -- where things stand ------------------------------------------------------------------

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain `node`, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that contains (or is) `node`."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def function(self, node: ast.AST) -> FunctionNode | None:
        """Return the innermost function whose body contains `node`, None if there is none.

        A decorator or a default belongs to the function around the one that it is written on.
        """
        for parent, child in self.path(node):
            if isinstance(parent, ast.Lambda) and child is parent.body:
                return parent
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
                child is s for s in parent.body
            ):
                return parent
        return None

    def path(self, node: ast.AST, *, inside: bool = False) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield the nodes that contain `node`, innermost first, each with the part it is in.

        Args:
          inside: whether to end before the innermost function.
        """
        child = node
        for parent in self.ancestors(node):
            if inside and isinstance(parent, FunctionNode):
                return
            yield parent, child
            child = parent

    def functions_around(self, node: ast.AST) -> Iterator[FunctionNode]:
        """Yield the functions that contain `node`, innermost first."""
        while (function := self.function(node)) is not None:
            yield function
            node = function

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """Return the class whose body directly holds a function, None if there is none."""
        parent = self.parents.get(function)
        return parent if isinstance(parent, ast.ClassDef) else None

    def class_around(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the innermost class that contains `node`, None if there is none."""
        return next((p for p in self.ancestors(node) if isinstance(p, ast.ClassDef)), None)

    def qualname(self, node: Definition) -> str | None:
        """Return the dotted name that other modules reach a definition by, None for inner ones."""
        if isinstance(node, ast.Lambda):
            return None
        parts = [node.name]
        for parent in self.ancestors(node):
            if isinstance(parent, ast.ClassDef):
                parts.insert(0, parent.name)
            elif isinstance(parent, FunctionNode):
                return None
        return ".".join([self.module, *parts] if self.module else parts)

    def scopes_around(self, node: ast.AST) -> Iterator[Scope]:
        """Yield the scopes around an expression except the module's, innermost first."""
        scope = next((s for n in ast.walk(node) if (s := self.scopes.get(n))), None)
        while scope is not None and scope is not self.root:
            yield scope
            scope = scope.parent

    # -- what a name refers to ---------------------------------------------------------------

    def bindings(self, name: ast.Name) -> tuple[Binding, ...]:
        """Return the bindings that may have given `name` the value it has here."""
        known = self._bindings.get(name)
        if known is None:
            known = self._bindings[name] = self._find_bindings(name)
        return known

    def _find_bindings(self, name: ast.Name) -> tuple[Binding, ...]:
        scope: Scope | None = self.scopes[name]
        use: ast.AST = name
        first = True
        while scope is not None:
            visible = first or not scope.is_class
            if visible and name.id in scope.bindings and name.id not in scope.outer:
                return self._reaching(scope.bindings[name.id], use if first else None, scope)
            if not isinstance(scope.node, _COMPREHENSIONS):
                first = False
            scope = scope.parent
        return ()

    def _reaching(
        self, bindings: list[Binding], use: ast.AST | None, scope: Scope
    ) -> tuple[Binding, ...]:
        """Return the bindings of one name that reach a use, or the end of the scope for None."""
        reaching: list[Binding] = []
        around = set(self.ancestors(use)) if use is not None else None
        last, found = len(bindings), use is None
        if use is not None:  # they are in source order; one that is not may reach by being later
            last = bisect_right(bindings, self.order[use], key=lambda b: b.order)
        for index in range(last - 1, -1, -1):
            binding = bindings[index]
            if use is not None:
                if not self._before(binding, use):
                    continue
                found = True
                if self._other_branch(binding.node, use):
                    continue
            reaching.append(binding)
            if self._unconditional(binding, around, scope):
                break
            if len(reaching) == _MAX_REACHING:
                reaching.append(_unknown(binding))
                break
        if not found:  # bound later only: a loop, or an error of the user's
            later = bindings[:_MAX_REACHING]
            return tuple(later if later == bindings else [*later, _unknown(later[0])])
        return tuple(reversed(reaching))

    def _before(self, binding: Binding, use: ast.AST) -> bool:
        if binding.kind == "param":
            return True
        if binding.order > self.order[use]:
            return False
        # `f = g(f)`: the use stands in the binding's own value.
        node = binding.node
        if binding.kind in {"def", "class"}:
            return True
        return isinstance(node, (ast.comprehension, ast.For, ast.AsyncFor)) or not any(
            p is node for p in self.ancestors(use)
        )

    def _other_branch(self, one: ast.AST, other: ast.AST) -> bool:
        """Return whether two nodes are in different branches of one `if` or `match`."""
        if not any(isinstance(parent, (ast.If, ast.Match)) for parent in self.ancestors(one)):
            return False
        path = dict(self.path(one))
        for parent, child in self.path(other):
            if parent in path:
                mine, its = path[parent], child
                if isinstance(parent, ast.Match):
                    return mine is not its and mine in parent.cases and its in parent.cases
                if isinstance(parent, ast.If) and mine is not its:
                    return (mine in parent.body and its in parent.orelse) or (
                        mine in parent.orelse and its in parent.body
                    )
                return False
        return False

    def _unconditional(self, binding: Binding, around: set[ast.AST] | None, scope: Scope) -> bool:
        """Return whether every path to the use passes this binding."""
        if binding.kind == "param":
            return True
        for parent in self.ancestors(binding.node):
            if parent is scope.node:
                return True
            if isinstance(parent, (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)):
                if around is None or parent not in around:
                    return False
                # In the same arm: what is left of the way is shared with the use.
                if isinstance(parent, (ast.If, ast.Try, ast.Match)):
                    continue
        return True

    def origins(self, node: ast.AST | None) -> tuple[Origin, ...]:
        """Return what an expression may be.

        Its origins are names of other modules, definitions here, or the expression that made it (a
        call, a constant), with None among them for what cannot be known.
        """
        if node is None:
            return (None,)
        cached = self._origins.get(node)
        if cached is not None:
            return cached
        if not self._pending:
            self._steps, self._cut = 0, False
        self._steps += 1
        if node in self._pending or len(self._pending) > _MAX_DEPTH or self._steps > _MAX_STEPS:
            self._cut = True
            return (None,)
        self._pending.add(node)
        try:
            origins = tuple(dict.fromkeys(self._compute(node)))
        finally:
            self._pending.discard(node)
        if not self._cut or not self._pending:
            self._origins[node] = origins  # what a cut answered holds for this question alone
        return origins

    def _compute(self, node: ast.AST) -> Iterator[Origin]:
        match node:
            case ast.Name():
                bindings = self.bindings(node)
                if not bindings:
                    yield External(node.id) if node.id in _BUILTINS else None
                for binding in bindings:
                    yield from self._of_binding(binding)
            case ast.Attribute():
                yield from self._of_attribute(node)
            case ast.IfExp():
                yield from self.origins(node.body)
                yield from self.origins(node.orelse)
            case ast.BoolOp():
                for value in node.values:
                    yield from self.origins(value)
            case ast.NamedExpr():
                yield from self.origins(node.value)
            case _:
                yield node

    def _of_binding(self, binding: Binding) -> Iterator[Origin]:
        match binding.kind:
            case "import":
                yield External(binding.qualname)
            case "def" | "class":
                yield binding.node
            case "assign" | "other" if (module := self._loaded_module(binding)) is not None:
                yield External(module)
            case "assign" if binding.value is not None and not binding.element:
                yield from self.origins(binding.value)
            case "param":
                if binding.value is not None:
                    yield from self.origins(binding.value)
                yield None
            case _:
                yield None

    def _loaded_module(self, binding: Binding) -> str | None:
        """Return the module that a function has imported for a name of this one, None if none has.

        For example `jax` in `jax, jnp = safe_import_jax()`, and `diffrax` in
        `diffrax = lazy_import("diffrax")`.
        """
        if binding.owner is not self.tree or not isinstance(binding.node, ast.Assign):
            return None
        match binding.node.value:
            case ast.Call(func=func, args=[ast.Constant(value=str(module)), *_]) if (
                binding.kind == "assign"
                and "import" in getattr(func, "attr", getattr(func, "id", ""))
            ):
                return module
            case ast.Call():
                return _LOADED_MODULES.get(binding.name)
        return None

    def _of_attribute(self, node: ast.Attribute) -> Iterator[Origin]:
        if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
            owner = self.class_around(node)
            if owner is not None:
                yield from self._member(owner, node.attr, node)
                return
        for origin in self.origins(node.value):
            match origin:
                case External(qualname):
                    yield External(f"{qualname}.{node.attr}")
                case ast.ClassDef():
                    yield from self._member(origin, node.attr)
                case _:
                    yield None

    def _member(
        self, owner: ast.ClassDef, attr: str, use: ast.AST | None = None
    ) -> Iterator[Origin]:
        values = self.assigned(owner, attr, use)
        for value in values:
            yield from self.origins(value)
        for statement in owner.body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name == attr:
                    yield statement
                    return
                case ast.Assign(targets=[ast.Name(id=name)]) if name == attr:
                    yield from self.origins(statement.value)
                    return
        if not values:
            yield None

    def assigned(
        self, owner: ast.ClassDef, attr: str, use: ast.AST | None = None
    ) -> list[ast.expr]:
        """Return what the methods of a class assign to an attribute of `self`.

        What `self.f = wrap(self.f)` assigns is left out for the use that stands in it.
        """
        values = self.self_assigned.get((owner, attr), [])
        if len(values) < 2 or use is None:
            return values
        around = {use, *self.ancestors(use)}
        return [v for v in values if v not in around]

    def method(self, owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
        """Return a method that the class itself defines, None if it defines none of this name."""
        return next(
            (s for s in owner.body if isinstance(s, ast.FunctionDef) and s.name == name), None
        )

    def qualnames(self, node: ast.AST | None) -> tuple[str, ...]:
        """Return the dotted names among an expression's origins."""
        return tuple(o.qualname for o in self.origins(node) if isinstance(o, External))

    def single_origin(self, node: ast.AST | None) -> Origin:
        """Return an expression's origin where it has exactly one, else None."""
        origins = self.origins(node)
        return origins[0] if len(origins) == 1 else None

    @cached_property
    def appended(self) -> dict[ast.List, list[ast.expr]]:
        """What is appended to each list that is written as empty: `blocks = []` and later."""
        by_list: dict[ast.List, list[ast.expr]] = {}
        for call in self.calls:
            match call:
                case ast.Call(func=ast.Attribute(value=container, attr="append"), args=[value]):
                    origin = self.single_origin(container)
                    if isinstance(origin, ast.List) and not origin.elts:
                        by_list.setdefault(origin, []).append(value)
        return by_list

    def loads_of(self, binding: Binding) -> Iterator[ast.Name]:
        """Yield the places that read the value a binding gave."""
        readers = self._readers.get(binding.name)
        if readers is None:
            readers = self._readers[binding.name] = {}
            for load in self.loads.get(binding.name, ()):
                for reaching in self.bindings(load):
                    readers.setdefault(reaching, []).append(load)
        yield from readers.get(binding, ())

    def constant(self, node: ast.AST | None) -> object:
        """Return the value of a string, a number or a tuple of them, else `Ellipsis`."""
        origin = self.single_origin(node)
        if not isinstance(origin, ast.expr):
            return ...
        try:
            return ast.literal_eval(origin)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return ...


_BUILTINS = frozenset(
    "getattr set frozenset list tuple map dict range len enumerate zip reversed".split()
)


def _iterates_over(
    value: ast.expr | None, targets: list[ast.expr]
) -> list[tuple[ast.expr, ast.expr | None]]:
    """Return what the targets of `for i, (a, b) in enumerate(zip(x, y))` are elements of."""
    match value:
        case ast.Call(func=ast.Name(id="enumerate"), args=[container, *_]) if len(targets) == 2:
            return [(targets[0], None), (targets[1], container)]
        case ast.Call(func=ast.Name(id="zip"), args=args) if len(args) == len(targets):
            if not any(isinstance(a, ast.Starred) for a in (*args, *targets)):
                return list(zip(targets, args, strict=True))
    return []


def imported_from(package: str, level: int, module: str) -> str:
    """Return the absolute dotted name of the module that `from ..module import name` names.

    Args:
      package: the package of the file that imports.
    """
    if not level:
        return module
    for _ in range(level - 1):
        package = package.rpartition(".")[0]
    if not package:
        package = "." * level  # a relative import in a file whose package is not known
    return f"{package}.{module}" if module else package


def _unknown(binding: Binding) -> Binding:
    """Return a binding of unknown value that stands for the many bindings beyond one."""
    return replace(binding, kind="other", value=None)
