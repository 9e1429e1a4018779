from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Edit, Fix, Violation
from jaxresid.linter.resolve.names import Binding, FunctionNode
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

_Round = ast.For | ast.AsyncFor | ast.comprehension
_MAX_STEPS = 3
_STORING = frozenset({"append", "add", "insert", "appendleft"})


class LateBoundCheckpoint(Rule):
    """Checkpointed functions made in a loop all read the loop's last value.

    ## What it does
    Finds a checkpointed lambda, or a function defined in the loop, that reads a variable of the
    loop and is kept for later: in a list comprehension, or by `append` or an index.

    ## Why is this bad?
    A function looks its variables up when it is called, and then the loop is over: every layer
    uses the last layer's weights, without an error.

    ## Use instead
    Pass the value as an argument, `block(w, x)`, with one checkpointed function for all layers;
    or bind it: `jax.checkpoint(functools.partial(layer, w))`, `lambda x, w=w: x @ w`.

    ## When is this fine?
    Where the function is called before the loop goes on: that is not reported.

    ## Is the fix safe?
    No: it binds the variable as a default argument, which changes the function's signature and
    what it computes.
    """

    code = "JXR507"
    name = "late-bound-checkpoint"
    severity = "error"
    why = "A function looks up the variables around it when it is called, not when it is made."
    help = "pass the value as an argument, or bind it with `functools.partial`"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax


            def layers(ws):
                return [jax.checkpoint(lambda x: x @ w) for w in ws]  # !
            """,
            fixed="""
            import jax


            def layers(ws):
                return [jax.checkpoint(lambda x, w=w: x @ w) for w in ws]
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def layers(ws):
                return [jax.checkpoint(lambda x, w=w: x @ w) for w in ws]
            """
        ),
        Example(
            """
            import jax


            def model(ws, x):
                for w in ws:
                    x = jax.checkpoint(lambda x: x @ w)(x)
                return x
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            function = _made_here(facts, site)
            if function is None:
                continue
            for round_, bindings in _late(facts, function):
                if _is_kept(facts, site, round_) and not _is_last_round(facts, site, round_):
                    names = sorted({b.name for b in bindings})
                    listed = ", ".join(f"`{n}`" for n in names)
                    yield self.report(
                        facts,
                        site.node,
                        f"every function that this loop makes reads the last {listed}",
                        fix=_bound(facts, function, names),
                    )
                    break


def _made_here(facts: Facts, site: Site) -> FunctionNode | None:
    """The function that a site checkpoints, if it is made where it is checkpointed."""
    if isinstance(site.definition, ast.FunctionDef):
        return site.definition
    if isinstance(site.target, ast.Lambda):
        return site.target
    found = facts.names.single_origin(site.target) if isinstance(site.target, ast.Name) else None
    return found if isinstance(found, (ast.FunctionDef, ast.Lambda)) else None


def _late(facts: Facts, function: FunctionNode) -> Iterator[tuple[_Round, list[Binding]]]:
    """The loops around a function, innermost first, whose variables it reads when called."""
    reads = _free(facts, function)
    for loop in _rounds(facts, function):
        found = [b for b in reads if _varies(facts, b, loop)]
        if found:
            yield loop, found


def _free(facts: Facts, function: FunctionNode) -> list[Binding]:
    body = function.body if isinstance(function.body, list) else [function.body]
    found: list[Binding] = []
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                bindings = facts.names.bindings(node)
                if not any(function in facts.names.ancestors(b.node) for b in bindings):
                    found += bindings[-1:]
    return found


def _rounds(facts: Facts, function: FunctionNode) -> Iterator[_Round]:
    child: ast.AST = function
    for parent in facts.names.ancestors(function):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            return
        if isinstance(parent, (ast.For, ast.AsyncFor)) and child in parent.body:
            yield parent
        if isinstance(parent, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            yield from reversed(parent.generators)
        child = parent


def _varies(facts: Facts, binding: Binding, loop: _Round, left: int = _MAX_STEPS) -> bool:
    """Whether a loop gives a variable another value each round."""
    if binding.node is loop:
        return True
    if not isinstance(binding.node, (ast.Assign, ast.AnnAssign)) or left == 0:
        return False
    if not any(p is loop for p in facts.names.ancestors(binding.node)):
        return False
    value = binding.node.value
    return value is not None and any(
        _varies(facts, inner, loop, left - 1)
        for node in ast.walk(value)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        for inner in facts.names.bindings(node)
    )


def _is_kept(facts: Facts, site: Site, loop: _Round) -> bool:
    """Whether what a site makes is put away for after the loop, and not used before."""
    places: list[ast.AST] = [site.node]
    if site.definition is not None:
        places = _loads(facts, site.definition, site.definition.name)
    kept = False
    for place in places:
        top = _outermost(facts, place)
        parent = facts.names.parents.get(top)
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            places += _loads(facts, parent, parent.targets[0].id)
        elif _is_stored(facts, top, loop):
            kept = True
        else:
            return False
    return kept


def _is_last_round(facts: Facts, site: Site, loop: _Round) -> bool:
    """Whether the loop is left right after a site."""
    if isinstance(loop, ast.comprehension):
        return False
    child: ast.AST = facts.names.statement(site.node)
    while child is not loop:
        parent = facts.names.parents[child]
        blocks = [b for _, b in ast.iter_fields(parent) if isinstance(b, list) and child in b]
        if any(isinstance(b[-1], (ast.Break, ast.Return, ast.Raise)) for b in blocks):
            return True
        child = parent
    return False


def _loads(facts: Facts, node: ast.AST, name: str) -> list[ast.AST]:
    scope = facts.names.scopes.get(node)
    if scope is None:
        statement = node.targets[0] if isinstance(node, ast.Assign) else node
        scope = facts.names.scopes[statement]
    found: list[ast.AST] = []
    for binding in scope.bindings.get(name, ()):
        if binding.node is node:
            found += facts.names.loads_of(binding)
    return found


def _outermost(facts: Facts, node: ast.AST) -> ast.AST:
    """The expression that a function stands in, with the transforms and tuples around it."""
    while True:
        parent = facts.names.parents.get(node)
        if isinstance(parent, ast.Call) and parent.args[:1] == [node]:
            if facts.role(parent.func, "transform") is None:
                return node
        elif not isinstance(parent, (ast.Tuple, ast.List, ast.Dict)):
            return node
        node = parent


def _is_stored(facts: Facts, node: ast.AST, loop: _Round) -> bool:
    parent = facts.names.parents.get(node)
    match parent:
        case ast.ListComp() | ast.SetComp() | ast.DictComp():
            return loop in parent.generators and node is not getattr(parent, "key", None)
        case ast.Call(func=ast.Attribute(attr=attr, value=ast.Name() as value)):
            return attr in _STORING and node in parent.args and _outlives(facts, value, loop)
        case ast.Assign(targets=[ast.Subscript(value=ast.Name() as value)]):
            return _outlives(facts, value, loop)
        case ast.AugAssign(target=ast.Name(), op=ast.Add()):
            return isinstance(node, ast.List) and isinstance(loop, (ast.For, ast.AsyncFor))
    return False


def _outlives(facts: Facts, container: ast.Name, loop: _Round) -> bool:
    """Whether a container is made before a loop and read only after it."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return False
    inside = set(ast.walk(loop))
    bindings = facts.names.bindings(container)
    if not bindings or any(b.node in inside for b in bindings):
        return False
    loads = [n for n in facts.names.loads.get(container.id, ()) if n in inside]
    return len(loads) == 1


def _bound(facts: Facts, function: FunctionNode, names: list[str]) -> Fix | None:
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    if not positional or args.defaults or args.vararg or args.kwonlyargs or args.kwarg:
        return None
    end = facts.source.end(facts.source.span(positional[-1]))
    text = "".join(f", {n}={n}" for n in names)
    listed = " and ".join(f"`{n}`" for n in names)
    edit = Edit(facts.source.between(end, end), text)
    return Fix(f"Bind {listed} as a default argument", (edit,), "unsafe")
