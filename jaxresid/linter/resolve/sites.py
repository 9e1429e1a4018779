"""Find checkpoint sites and their policies, names, loops and derivatives in one module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jaxresid.linter.resolve import apis
from jaxresid.linter.resolve.callees import MAX_DEPTH, CallArguments, Callees
from jaxresid.linter.resolve.names import Definition, External, FunctionNode, Names, Origin

if TYPE_CHECKING:
    from jaxresid.linter.text.source import SourceText


class Policy(NamedTuple):
    """The policy of a site.

    Attributes:
      kind: `none` (absent or None), `plain`, `factory` (a factory's result), `uncalled` (a factory
        itself), `called` (a plain policy's result), `callable` (a function defined here),
        `unknown`.
      name: its name in `jax.checkpoint_policies`, where it is one of those.
      call: for `factory` and `called`, the call.
      function: for `callable`, the function.
    """

    kind: Literal["none", "plain", "factory", "uncalled", "called", "callable", "unknown"]
    name: str | None = None
    node: ast.expr | None = None
    call: ast.Call | None = None
    function: FunctionNode | None = None

    @property
    def saves_nothing(self) -> bool:
        """Return whether it is certain that everything is recomputed.

        The result of `nothing_saveable()` is False, which JAX takes for no policy.
        """
        if self.kind == "factory" and self.name == "save_only_these_names":
            return self.call is not None and not self.call.args
        return self.kind == "none" or (
            self.kind in {"plain", "called"} and self.name == "nothing_saveable"
        )


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """One use of the checkpoint family.

    Attributes:
      node: what is reported: the call, or the decorator.
      form: `call`, or `decorator` (with `definition`, the function or class decorated).
      target: the expression that is checkpointed, for calls.
      definition: the function or class that is checkpointed, for decorators.
      calls: the calls that give keywords: the site's own, partials, factories.
    """

    api: apis.CheckpointApi
    qualname: str
    node: ast.expr
    form: Literal["call", "decorator"]
    arguments: CallArguments
    target: ast.expr | None = None
    definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None = None
    calls: tuple[ast.Call, ...] = ()

    def keyword(self, name: str) -> ast.expr | None:
        """Return the value given to a keyword, None where it is not given."""
        keyword = self.arguments.keywords.get(name)
        return keyword.value if keyword is not None else None


class Named(NamedTuple):
    """One call of `checkpoint_name`; `name` is the literal, None where it is computed."""

    node: ast.Call
    value: ast.expr | None
    name: str | None
    argument: ast.expr | None


class Loop(NamedTuple):
    """One call of the loop family, or a decorator of it."""

    node: ast.Call | ast.expr
    api: apis.LoopApi
    qualname: str
    arguments: CallArguments
    bodies: tuple[ast.expr, ...]


_Decorated = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# An `if`, and whether what is meant stands in its body.
Arm = tuple[ast.If, bool]


class Sites:
    """What the rules are about: the checkpoints of a module, their policies, names and loops."""

    def __init__(self, source: SourceText, names: Names, callees: Callees) -> None:
        self.source, self.names, self.callees = source, names, callees

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The uses of the checkpoint family, in source order."""
        sites = []
        for call in self.names.calls:
            has_arguments = call.args or call.keywords
            role = self.callees.role(call.func, "checkpoint") if has_arguments else None
            if role is None:
                continue
            arguments = self.callees.arguments(call, role)
            target = arguments.get(0, role.entry.target)
            if target is not None:
                calls = (*role.bound, call)
                site = Site(role.entry, role.qualname, call, "call", arguments, target, calls=calls)
                sites.append(site)
        for definition, decorator in self._decorators():
            role = self.callees.role(decorator, "checkpoint")
            if role is not None:
                arguments = self.callees.arguments(None, role)
                site = Site(role.entry, role.qualname, decorator, "decorator", arguments)
                sites.append(replace(site, definition=definition, calls=role.bound))
        return tuple(sorted(sites, key=lambda s: (s.node.lineno, s.node.col_offset)))

    @cached_property
    def named(self) -> tuple[Named, ...]:
        """The calls of `checkpoint_name`."""
        named = []
        for call in self.names.calls:
            role = self.callees.role(call.func, "name")
            if role is not None:
                arguments = self.callees.arguments(call, role)
                argument = arguments.get(1, "name")
                value = self.names.constant(argument) if argument is not None else None
                name = value if isinstance(value, str) else None
                named.append(Named(call, arguments.get(0, "x"), name, argument))
        return tuple(named)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The calls of the loop family, and its decorators, which name no body."""
        loops: list[Loop] = []
        for _, decorator in self._decorators():
            role = self.callees.role(decorator, "loop")
            if role is not None:
                arguments = self.callees.arguments(None, role)
                loops.append(Loop(decorator, role.entry, role.qualname, arguments, ()))
        for call in self.names.calls:
            role = self.callees.role(call.func, "loop")
            if role is None or (role.entry.factory and not role.bound):
                continue
            arguments = self.callees.arguments(call, role)
            bodies = tuple(
                body
                for position, keyword in role.entry.bodies
                if (body := arguments.get(position, keyword)) is not None
            )
            if role.entry.factory:
                bodies = tuple(call.args[:1])
            loops.append(Loop(call, role.entry, role.qualname, arguments, bodies))
        return tuple(loops)

    def _decorators(self) -> Iterator[tuple[_Decorated, ast.expr]]:
        for definition in (*self.names.functions, *self.names.classes):
            if not isinstance(definition, ast.Lambda):
                yield from ((definition, decorator) for decorator in definition.decorator_list)

    @cached_property
    def _mentions_policies(self) -> bool:
        return apis.POLICIES_MODULE in self.source.text

    @cached_property
    def policy_names(self) -> tuple[tuple[ast.Name | ast.Attribute, str], ...]:
        """The references to members of `jax.checkpoint_policies`, known or not, outermost only."""
        references: list[tuple[ast.Name | ast.Attribute, str]] = []
        if not self._mentions_policies:
            return ()
        nodes: list[ast.Name | ast.Attribute] = [*self.names.attributes, *self.names.names]
        for node in nodes:
            if not isinstance(node.ctx, ast.Load):
                continue
            if isinstance(node, ast.Name) and not any(
                b.kind == "import" for b in self.names.bindings(node)
            ):
                continue
            if name := self._policy_name(node):
                references.append((node, name))
        return tuple(sorted(references, key=lambda f: (f[0].lineno, f[0].col_offset)))

    @cached_property
    def policy_calls(self) -> tuple[tuple[ast.Call, str], ...]:
        """The calls of members of `jax.checkpoint_policies`, through aliases too."""
        calls = self.names.calls if self._mentions_policies else ()
        return tuple((call, name) for call in calls if (name := self._policy_name(call.func)))

    def _policy_name(self, node: ast.expr) -> str | None:
        names = map(apis.policy_name, self.names.qualnames(node))
        return next(filter(None, names), None)

    def policy(self, site: Site) -> Policy:
        """Return the policy that a site is given."""
        node = site.keyword("policy")
        if node is None:
            return Policy("unknown" if site.arguments.dynamic else "none")
        return self.policy_of(node)

    def policy_of(self, node: ast.expr) -> Policy:
        """Return the policy that an expression is."""
        origins = self.names.origins(node)
        if len(origins) != 1:
            return Policy("unknown", node=node)
        match origins[0]:
            case ast.Constant(value=None):
                return Policy("none", node=node)
            case External(qualname) if (name := apis.policy_name(qualname)) is not None:
                if name in apis.FACTORIES:
                    return Policy("uncalled", name, node)
                return Policy("plain" if name in apis.PLAIN_POLICIES else "unknown", name, node)
            case ast.Call() as call:
                if called := self._policy_name(call.func):
                    kind: Any = "factory" if called in apis.FACTORIES else "called"
                    return Policy(kind, called, node, call)
            case ast.Lambda() | ast.FunctionDef() as function:
                return Policy("callable", node=node, function=function)
        return Policy("unknown", node=node)

    def prevent_cse(self, site: Site) -> bool | None:
        """Return the value of `prevent_cse` of a site, None where it is computed."""
        if site.api.loop:
            return False  # flax.linen.remat_scan sets it itself
        node = site.keyword("prevent_cse")
        if node is None:
            return None if site.arguments.dynamic else True
        value = self.names.constant(node)
        return value if isinstance(value, bool) else None

    # -- under which condition ---------------------------------------------------------------

    @cached_property
    def chosen_sites(self) -> dict[FunctionNode | None, list[tuple[Site, Arm]]]:
        """The sites under an `if`, with their arm of it, by the function that they stand in."""
        by_function: dict[FunctionNode | None, list[tuple[Site, Arm]]] = {}
        for site in self.sites:
            arm = self.arm(site.node)
            if arm is not None:
                by_function.setdefault(self.names.function(site.node), []).append((site, arm))
        return by_function

    def arm(self, node: ast.AST) -> Arm | None:
        """Return the innermost `if` around a node in its function, with whether it is its body."""
        for parent, child in self.names.path(node, inside=True):
            if isinstance(parent, ast.If):
                return parent, child in parent.body
        return None

    # -- what is checkpointed ----------------------------------------------------------------

    def targets(self, site: Site) -> tuple[Origin, ...]:
        """Return what a site checkpoints: definitions here, names of other modules, calls, None."""
        if site.definition is not None:
            return (site.definition,)
        return tuple(self.inside(o) for o in self.names.origins(site.target))

    def inside(self, origin: Origin, depth: int = 0) -> Origin:
        """Return the function inside jit, vmap and partial."""
        if depth > MAX_DEPTH or not isinstance(origin, ast.Call):
            return origin
        role = self.callees.role(origin.func, "transform")
        if role is None or not origin.args:
            return origin
        inner = self.names.origins(origin.args[0])
        return self.inside(inner[0], depth + 1) if len(inner) == 1 else origin

    def target(self, site: Site) -> Definition | None:
        """Return the function or class that a site checkpoints, None unless it is defined here."""
        targets = self.targets(site)
        return targets[0] if len(targets) == 1 and isinstance(targets[0], Definition) else None

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

    def site_of(self, node: ast.AST) -> Site | None:
        """Return the site that an expression or a decorated definition is, None if it is none."""
        return self._site_nodes.get(node)

    @cached_property
    def _site_nodes(self) -> dict[ast.AST, Site]:
        by_node: dict[ast.AST, Site] = {}
        for site in self.sites:
            by_node[site.node] = site
            if site.definition is not None:
                by_node[site.definition] = site
        return by_node
