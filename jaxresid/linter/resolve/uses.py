"""Follow where the value of an expression goes.

It goes through names, aliases, jit, vmap, partial, lists and helpers, until it is called, scanned,
differentiated, checkpointed, or lost to code that is not visible.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from jaxresid.base.violations import Span
from jaxresid.linter.resolve import apis
from jaxresid.linter.resolve.callees import MAX_DEPTH, Role
from jaxresid.linter.resolve.names import Binding, External
from jaxresid.linter.resolve.sites import Site, SiteFinder

UseKind = Literal[
    "call",  # the value is called
    "loop",  # it is the body of a staged loop, map or branch
    "derivative",  # it is differentiated
    "checkpoint",  # it is checkpointed
    "rule",  # it is a rule of a custom derivative
    "discarded",  # the expression is a statement
    "returned",
    "escapes",  # it goes where we cannot follow
]

# How many places one question follows a value to; beyond them it escapes.
_MAX_STEPS = 10_000
_MAX_ALL_STEPS = 1_000_000  # of all questions about a module
# Builtins whose elements are those of their arguments.
_ITERATORS = frozenset({"enumerate", "zip", "reversed"})
# What takes the rules of a custom derivative that replaces the reverse pass. A jvp rule is itself
# differentiated, so code in one is code like any other.
_VJP_RULES = frozenset({"defvjp", "def_fwd", "def_bwd"})


class Use(NamedTuple):
    """One place that a function value reaches.

    Attributes:
      kind: what happens to the value there.
      node: the call that uses it (for `call`, the call of the value itself).
      api: the loop family's entry, for `loop`.
      mode: for `derivative`.
      through: what it went through on the way: `jit`, `vmap`, `partial`, `custom`, `element`
        (it was an element of a list), `instance` (a class was instantiated), `made` (a function
        returned it to its caller).
    """

    kind: UseKind
    node: ast.AST
    api: apis.LoopApi | None = None
    mode: apis.Mode | None = None
    through: tuple[str, ...] = ()


# What a value may go through without anything but calls of it becoming of it.
PLAIN = frozenset({"jit", "vmap", "partial", "element", "iterated", "class", "instance"})


class RemoteCheckpoint(NamedTuple):
    """A checkpoint in another module.

    Attributes:
      callee: how that module spells it: `nn.remat`.
      path: the file of the other module.
      span: the place in that file.
    """

    callee: str
    path: str
    span: Span


class RemoteAround(NamedTuple):
    """What runs a call in another module, as far as that module shows: checkpointed functions.

    Attributes:
      checkpoint: one of the checkpoints, None where there is none in that module.
      names: the functions and classes that contain the call, by their dotted names, which further
        modules may use.
      unused: those among them that that module does not use itself.
      home: the file of that module.
    """

    checkpoint: RemoteCheckpoint | None
    names: tuple[str, ...]
    unused: tuple[str, ...]
    home: Path


class RemoteUse(NamedTuple):
    """A use that another module makes of a function.

    Attributes:
      kind: what happens to the function there.
      callee: what it is passed to, as that module spells it: `jax.value_and_grad`.
      path: the file of the other module.
      span: the place in that file.
      forward: whether the derivative, if it is one, is in forward mode.
      in_loop, in_reverse: whether that happens under a staged loop, or under a reverse-mode
        derivative.
      in_rule: whether that is, or happens only inside, a rule of a custom derivative, which JAX
        does not differentiate.
      through: what the function went through on the way, as in `Use`.
      replaces_checkpoint: whether it is a call in the place of one of the checkpointed function.
      around: what runs it, if it is a call that nothing but checkpoints is around, or may be; else
        None.
    """

    kind: UseKind
    callee: str
    path: str
    span: Span
    forward: bool
    in_loop: bool
    in_reverse: bool
    in_rule: bool
    through: tuple[str, ...]
    replaces_checkpoint: bool
    around: RemoteAround | None = None

    @property
    def checkpoint(self) -> RemoteCheckpoint:
        """The use as a checkpoint, of the kind of that name."""
        return RemoteCheckpoint(self.callee, self.path, self.span)


class UseResolver(SiteFinder):
    """A resolver of the uses of values, which follows where they go."""

    _uses: dict[tuple[ast.AST, int], tuple[Use, ...]]
    _steps_left = 0
    _all_steps_left = _MAX_ALL_STEPS

    def uses(self, value: ast.AST) -> tuple[Use, ...]:
        """Return where the value of an expression, or of a definition with its decorators, goes."""
        if isinstance(value, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return self._decorated_uses(value, len(value.decorator_list))
        key = (value, -1)
        if key not in self._uses:
            self._uses[key] = ()  # what a cycle sees
            site = self.site_of(value) if isinstance(value, ast.Call) else None
            through = ("class",) if site is not None and self.is_class(site) else ()
            self._uses[key] = self._unique(self._flow(value, through, 0))
        return self._uses[key]

    def is_class(self, site: Site) -> bool:
        """Return whether what a site checkpoints is a class, as far as names tell."""
        if site.api.library not in {"linen", "partitioning"}:
            return False
        targets = self.targets(site)
        known = [t for t in targets if t is not None]
        if any(isinstance(t, ast.ClassDef) for t in known):
            return True
        names = [t.qualname for t in known if isinstance(t, External)]
        if isinstance(site.target, (ast.Name, ast.Attribute)) and not known:
            names.append(site.target.id if isinstance(site.target, ast.Name) else site.target.attr)
        return any(n.rpartition(".")[2][:1].isupper() for n in names)

    def site_uses(self, site: Site) -> tuple[Use, ...]:
        """Return where the checkpointed function of a site goes."""
        if site.definition is not None:
            return self.uses_above(site.definition, site.node)
        return self.uses(site.node)

    def uses_above(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, decorator: ast.expr
    ) -> tuple[Use, ...]:
        """Return where a definition goes once one of its decorators has been applied."""
        return self._decorated_uses(node, node.decorator_list.index(decorator))

    def _decorated_uses(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, index: int
    ) -> tuple[Use, ...]:
        """Return where a definition goes after the decorators from `index` down are applied."""
        key = (node, index)
        if key not in self._uses:
            self._uses[key] = ()
            through = ("class",) if isinstance(node, ast.ClassDef) else ()
            self._uses[key] = self._unique(self._through_decorators(node, index, through, 0))
        return self._uses[key]

    def _unique(self, uses: Iterator[Use]) -> tuple[Use, ...]:
        """Return each use once, following a bounded number of steps.

        Chains of helpers that each use their argument twice would otherwise take exponentially
        many.
        """
        outer, allowed = self._steps_left, min(_MAX_STEPS, self._all_steps_left)
        self._steps_left = allowed
        try:
            return tuple(dict.fromkeys(uses))
        finally:
            self._all_steps_left -= allowed - self._steps_left
            self._steps_left = outer

    def _through_decorators(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
        index: int,
        through: tuple[str, ...],
        depth: int,
    ) -> Iterator[Use]:
        for decorator in reversed(node.decorator_list[:index]):
            use = self._decorator_use(decorator, through)
            if isinstance(use, Use):
                yield use
                if use.kind == "checkpoint" or (use.api is not None and not use.api.curried):
                    return  # what `@partial(lax.scan, init=x)` leaves is the loop's result
                through = (*through, "derived")
            else:
                through = (*through, *use)
        scope = self.names.scopes[node]
        for binding in scope.bindings.get(node.name, ()):
            if binding.node is node:
                yield from self._binding_flow(binding, through, depth)
        owner = self.names.class_of(node)
        if owner is not None:
            yield from self._member_flow(owner, node.name, through, depth)

    def _decorator_use(
        self, decorator: ast.expr, through: tuple[str, ...]
    ) -> Use | tuple[str, ...]:
        for role in self.roles(decorator):
            match role.kind:
                case "checkpoint":
                    return Use("checkpoint", decorator, through=through)
                case "derivative":
                    return Use("derivative", decorator, mode=role.entry, through=through)
                case "loop":
                    return Use("loop", decorator, api=role.entry, through=through)
                case "transform":
                    return (role.entry,)
                case "custom":
                    return _custom(role)
        return ("unknown",)

    def _member_flow(
        self, owner: ast.ClassDef, name: str, through: tuple[str, ...], depth: int
    ) -> Iterator[Use]:
        """Yield the uses of `self.name` and `Class.name`, as far as the module shows."""
        for load in self.names.self_loads.get(name, ()):
            assert isinstance(load.value, ast.Name)
            if load.value.id in {"self", "cls"}:
                if self.names.class_around(load) is owner:
                    yield from self._flow(load, through, depth + 1)
            elif any(
                origin is owner
                or (isinstance(origin, ast.Call) and self.names.single_origin(origin.func) is owner)
                for origin in self.names.origins(load.value)
            ):
                yield from self._flow(load, through, depth + 1)

    def _binding_flow(
        self, binding: Binding, through: tuple[str, ...], depth: int
    ) -> Iterator[Use]:
        if depth > MAX_DEPTH:
            yield Use("escapes", binding.node, through=through)
            return
        for load in self.names.loads_of(binding):
            yield from self._flow(load, through, depth + 1)
            if self._steps_left < 0:
                return  # it has said that the value escapes

    def _flow(self, node: ast.AST, through: tuple[str, ...], depth: int) -> Iterator[Use]:
        self._steps_left -= 1
        if depth > MAX_DEPTH or self._steps_left < 0:
            yield Use("escapes", node, through=through)
            return
        parent = self.names.parents.get(node)
        match parent:
            case ast.Call() if node is parent.func:
                yield from self._call_flow(parent, node, through, depth)
            case ast.Call():
                yield from self._argument_flow(parent, node, through, depth)
            case ast.keyword():
                call = self.names.parents[parent]
                if isinstance(call, ast.Call):
                    yield from self._argument_flow(call, node, through, depth)
                else:
                    yield Use("escapes", parent, through=through)
            case ast.IfExp() if node is parent.test:
                return
            case ast.IfExp() | ast.BoolOp():
                yield from self._flow(parent, through, depth + 1)
            case ast.NamedExpr():
                yield from self._flow(parent, through, depth + 1)
                yield from self._assignment_flow(parent, [parent.target], through, depth)
            case ast.Assign():
                yield from self._assignment_flow(parent, parent.targets, through, depth)
            case ast.AnnAssign():
                yield from self._assignment_flow(parent, [parent.target], through, depth)
            case ast.Expr():
                yield Use("discarded", parent, through=through)
            case ast.Return() | ast.Lambda() | ast.Yield():
                yield Use("returned", parent, through=through)
                if isinstance(parent, ast.Return):
                    yield from self._result_flow(parent, through, depth)
            case ast.List() | ast.Tuple() | ast.ListComp() | ast.GeneratorExp() | ast.Set():
                yield from self._flow(parent, (*through, "element"), depth + 1)
            case ast.Subscript() if node is parent.value and "element" in through:
                yield from self._flow(parent, through, depth + 1)
            case ast.For() | ast.comprehension() if node is parent.iter and "element" in through:
                yield from self._iteration_flow(parent, parent.target, through, depth)
            case ast.arguments():
                yield from self._default_flow(parent, node, through, depth)
            case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                yield Use("escapes", parent, through=through)  # as a decorator
            case ast.Attribute():
                # `f.defvjp(...)`, `Block.apply`: an attribute is no use of the function itself.
                yield from self._attribute_flow(parent, through, depth)
            case ast.Compare() | ast.UnaryOp():
                return
            case None:
                return
            case _:
                yield Use("escapes", parent, through=through)

    def _result_flow(self, node: ast.Return, through: tuple[str, ...], depth: int) -> Iterator[Use]:
        """Yield where a function's result goes: to the places of its calls."""
        function = self.names.function(node)
        if isinstance(function, (ast.FunctionDef, ast.Lambda)) and depth < MAX_DEPTH:
            for use in self.uses(function):
                if use.kind == "call" and not use.through:
                    yield from self._flow(use.node, (*through, "made"), depth + 3)

    def _attribute_flow(
        self, node: ast.Attribute, through: tuple[str, ...], depth: int
    ) -> Iterator[Use]:
        if "instance" in through and node.attr in {"__call__", "apply"}:
            yield from self._flow(node, through, depth + 1)
        elif "instance" in through and node.attr == "init":
            return  # makes parameters, and is not differentiated
        elif "element" in through and node.attr == "append":
            return  # of its list
        elif node.attr not in {"defvjp", "defjvp", "defjvps", "__name__", "__doc__"}:
            yield Use("escapes", node, through=through)

    def _call_flow(
        self, call: ast.Call, node: ast.AST, through: tuple[str, ...], depth: int
    ) -> Iterator[Use]:
        if "class" in through and "instance" not in through:
            yield from self._flow(call, (*through, "instance"), depth + 1)
        else:
            yield Use("call", call, through=through)

    def _assignment_flow(
        self, node: ast.AST, targets: list[ast.expr], through: tuple[str, ...], depth: int
    ) -> Iterator[Use]:
        for target in targets:
            match target:
                case ast.Name(id=name):
                    scope = self.names.scopes[target]
                    for binding in scope.bindings.get(name, ()):
                        if binding.node is node:
                            yield from self._binding_flow(binding, through, depth)
                    if self._is_global(target):
                        yield Use("escapes", node, through=through)
                case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                    owner = self.names.class_around(target)
                    if owner is not None:
                        yield from self._member_flow(owner, attr, through, depth)
                        continue
                    yield Use("escapes", node, through=through)
                case _:
                    yield Use("escapes", node, through=through)

    def _is_global(self, name: ast.Name) -> bool:
        scope = self.names.scopes[name]
        return name.id in scope.outer

    def _iteration_flow(
        self,
        loop: ast.For | ast.comprehension,
        target: ast.expr | None,
        through: tuple[str, ...],
        depth: int,
    ) -> Iterator[Use]:
        """Yield where an element of a list goes: to the places of the loop's variable."""
        rest = tuple(t for t in through if t != "element")
        if not isinstance(target, ast.Name):
            yield Use("escapes", loop, through=through)
            return
        scope = self.names.scopes[target]
        for binding in scope.bindings.get(target.id, ()):
            if binding.node is loop:
                yield from self._binding_flow(binding, (*rest, "iterated"), depth)

    def _iterated(
        self, call: ast.Call, node: ast.AST
    ) -> tuple[ast.For | ast.comprehension, ast.expr | None] | None:
        """Return the loop over `enumerate(blocks)` and the like, with what takes their elements.

        Args:
          call: a call of `enumerate`, `zip` or `reversed`.
          node: the argument that is followed.
        """
        callee = self._iterator(call)
        parent = self.names.parents.get(call)
        loop: ast.For | ast.comprehension
        target: ast.expr | None
        if isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is call:
            loop, target = parent, parent.target
        elif isinstance(parent, ast.Call) and (outer := self._iterated(parent, call)) is not None:
            loop, target = outer
        else:
            return None
        if callee is None or node not in call.args:
            return None
        if callee == "reversed":
            return loop, target
        index = 1 if callee == "enumerate" else call.args.index(node)
        elements = target.elts if isinstance(target, ast.Tuple) else []
        return loop, elements[index] if index < len(elements) else None

    def _iterator(self, call: ast.Call) -> str | None:
        """Return the builtin that a call is one of, where it hands on the elements of lists."""
        callee = self.names.single_origin(call.func)
        name = callee.qualname if isinstance(callee, External) else None
        return name if name in _ITERATORS else None

    def _default_flow(
        self, arguments: ast.arguments, node: ast.AST, through: tuple[str, ...], depth: int
    ) -> Iterator[Use]:
        function = self.names.parents[arguments]
        args = [*arguments.posonlyargs, *arguments.args]
        pairs = [
            *zip(args[len(args) - len(arguments.defaults) :], arguments.defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for arg, default in pairs:
            if default is node:
                yield from self._parameter_flow(function, arg.arg, through, depth)

    def _parameter_flow(
        self, function: ast.AST, name: str, through: tuple[str, ...], depth: int
    ) -> Iterator[Use]:
        for load in self.names.loads.get(name, ()):
            if any(b.kind == "param" and b.owner is function for b in self.names.bindings(load)):
                yield from self._flow(load, through, depth + 1)

    def _argument_flow(
        self, call: ast.Call, node: ast.AST, through: tuple[str, ...], depth: int
    ) -> Iterator[Use]:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in _VJP_RULES:
            yield Use("rule", call, through=through)
            return
        followed = False
        for role in self._argument_roles(call):
            use = self._role_use(call, node, role, through)
            if isinstance(use, Use):
                followed = True
                yield use
            elif use is not None:
                followed = True
                yield from self._flow(call, (*through, *use), depth + 1)
        if not followed:
            yield from self._helper_flow(call, node, through, depth)

    def _argument_roles(self, call: ast.Call) -> Iterator[tuple[Role, int]]:
        """Yield what the call is, with how many positions its arguments are shifted by."""
        for role in self.roles(call.func):
            if role.kind == "transform" and role.entry == "partial" and call.args:
                for inner in self.roles(call.args[0]):
                    yield inner, -1
            yield role, sum(len(b.args) - self.is_partial(b) for b in role.bound)

    def _role_use(
        self, call: ast.Call, node: ast.AST, shifted: tuple[Role, int], through: tuple[str, ...]
    ) -> Use | tuple[str, ...] | None:
        """Return the use that passing `node` to a family's function makes.

        For a transform, the result is what the value goes through. None is returned where the
        argument is not the function that the family member is about.
        """
        role, shift = shifted
        where = _position(call, node)
        position = where + shift if isinstance(where, int) else None
        keyword = where if isinstance(where, str) else None
        match role.kind:
            case "loop" if role.entry.factory:
                if role.bound and node in call.args[:1]:
                    return Use("loop", call, api=role.entry, through=through)
            case "loop":
                bodies: tuple[tuple[int, str], ...] = role.entry.bodies
                if (
                    (role.entry.curried and position == 0)
                    or any(position == p or keyword == k for p, k in bodies)
                    or (role.qualname.endswith("switch") and position is not None and position >= 1)
                ):
                    return Use("loop", call, api=role.entry, through=through)
            case "derivative" if position == 0 or keyword in {"fun", "f", "fn", "value_fn"}:
                return Use("derivative", call, mode=role.entry, through=through)
            case "checkpoint" if position == 0 or keyword == role.entry.target:
                return Use("checkpoint", call, through=through)
            case "transform" if position == 0 or keyword in {"fun", "f", "func"}:
                if shift < 0:
                    return None
                return (role.entry,)
            case "custom" if position == 0 or keyword in {"fun", "f"}:
                return _custom(role)
        return None

    def _helper_flow(
        self, call: ast.Call, node: ast.AST, through: tuple[str, ...], depth: int
    ) -> Iterator[Use]:
        """Yield the uses of an argument inside a function defined here, else that it escapes."""
        callee = self.names.single_origin(call.func)
        if isinstance(callee, External) and callee.qualname in {"list", "tuple"}:
            yield from self._flow(call, through, depth + 1)
            return
        if isinstance(callee, External) and callee.qualname == "len":
            return
        over = self._iterated(call, node) if "element" in through else None
        if over is not None:
            yield from self._iteration_flow(*over, through, depth)
            return
        match call.func:
            case ast.Attribute(value=container, attr="append") if self._is_list(container):
                yield from self._appended_flow(container, (*through, "element"), depth)
                return
        where = _position(call, node)
        if isinstance(callee, (ast.FunctionDef, ast.Lambda)) and where is not None:
            args = [*callee.args.posonlyargs, *callee.args.args]
            if self.names.class_of(callee) is not None and isinstance(call.func, ast.Attribute):
                args = args[1:]
            name = where if isinstance(where, str) else None
            if isinstance(where, int) and where < len(args):
                name = args[where].arg
            if name is not None and depth < MAX_DEPTH:
                yield from self._parameter_flow(callee, name, (*through, "argument"), depth + 3)
                return
        yield Use("escapes", call, through=through)

    def _is_list(self, container: ast.expr) -> bool:
        origin = self.names.single_origin(container)
        return isinstance(origin, ast.List) and origin in self.names.appended

    def _appended_flow(
        self, container: ast.expr, through: tuple[str, ...], depth: int
    ) -> Iterator[Use]:
        """Yield where an element goes that is appended to a list: to the places of the list."""
        match container:
            case ast.Name():
                for binding in self.names.bindings(container):
                    yield from self._binding_flow(binding, through, depth)
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                owner = self.names.class_around(container)
                assert owner is not None  # the list is one of its attributes
                yield from self._member_flow(owner, attr, through, depth)


def _custom(role: Role) -> tuple[str, ...]:
    return ("jit",) if role.qualname.endswith("jvp") else ("custom",)


def _position(call: ast.Call, node: ast.AST) -> int | str | None:
    """Return where an argument is in a call: its index, or its keyword."""
    for index, arg in enumerate(call.args):
        if arg is node:
            return index
    for keyword in call.keywords:
        if keyword.value is node:
            return keyword.arg
    return None
