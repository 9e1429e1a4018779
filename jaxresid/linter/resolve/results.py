"""Tell what makes what a function returns, and what the function does beside that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.linter.resolve.names import Definition, FunctionNode
from jaxresid.linter.text.trees import children

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

# Methods and functions that turn a stage's output into a scalar at no cost worth keeping.
_REDUCTIONS = frozenset({"mean", "sum", "squeeze", "item", "astype", "nanmean", "asarray"})
# What makes constants, indices and other shapes, by name and as methods.
_SET_UP = frozenset(
    """
    len int float bool range tuple list min max isinstance
    jax.numpy.arange jax.numpy.linspace jax.numpy.zeros jax.numpy.ones jax.numpy.full jax.numpy.eye
    jax.numpy.zeros_like jax.numpy.ones_like jax.numpy.full_like jax.numpy.empty jax.numpy.asarray
    jax.numpy.array jax.numpy.float32 jax.numpy.int32 jax.numpy.bfloat16 jax.numpy.shape
    jax.numpy.reshape jax.numpy.transpose jax.numpy.swapaxes jax.numpy.moveaxis
    jax.numpy.expand_dims jax.numpy.squeeze jax.numpy.flip jax.numpy.broadcast_to
    jax.numpy.concatenate jax.numpy.stack jax.numpy.split
    jax.random.split jax.random.key jax.random.PRNGKey jax.random.fold_in
    jax.tree.leaves jax.tree_util.tree_leaves
    """.split()
)
# What makes one array of the elements of a list.
_JOINING = frozenset({"stack", "array", "asarray", "concatenate", "hstack", "vstack"})
_RESHAPING = frozenset("reshape transpose swapaxes squeeze ravel flatten astype items".split())
_MAX_NAMES = 5
_MAX_NESTING = 2
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def statements(function: FunctionNode) -> list[ast.stmt]:
    """Return a function's own statements without its docstring; a lambda's is one return."""
    if isinstance(function, ast.Lambda):
        return [ast.copy_location(ast.Return(function.body), function.body)]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return function.body[1:] if has_docstring else function.body


def without_reductions(node: ast.expr, *, keys: bool = False) -> ast.expr:
    """Return an expression without the reductions around it: `jnp.mean(f(x))` -> `f(x)`.

    What reduces each element of a list is a reduction of it: `sum(jnp.mean(y) for y in f(x))`.

    Args:
      keys: whether to keep what takes one part of it: `f(x)["loss"]`.
    """
    while True:
        match node:
            case ast.Call(args=[ast.ListComp() | ast.GeneratorExp() as comprehension]) if (
                reduced := _reduced_list(node.func, comprehension)
            ) is not None:
                node = reduced
            case ast.Call(func=ast.Attribute(attr=attr, value=inner), args=args) if (
                attr in _REDUCTIONS
            ):
                node = args[0] if args and isinstance(inner, ast.Name) else inner
            case ast.Subscript(slice=ast.Constant(value=str() | int())) if keys:
                return node
            case ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
                node = inner
            case ast.BinOp(left=inner, right=ast.Constant()):
                node = inner
            case ast.BinOp(left=ast.Constant(), right=inner):
                node = inner
            case _:
                return node


def _reduced_list(
    func: ast.expr, comprehension: ast.ListComp | ast.GeneratorExp
) -> ast.expr | None:
    """Return the list whose every element is reduced and joined, None where more is done."""
    name = getattr(func, "attr", getattr(func, "id", ""))
    if name != "sum" and not (isinstance(func, ast.Attribute) and name in _JOINING):
        return None
    match comprehension.generators:
        case [ast.comprehension(target=ast.Name(id=name), iter=made, ifs=[])]:
            element = without_reductions(comprehension.elt)
            if isinstance(element, ast.Name) and element.id == name:
                return made
    return None


def returned_expression(facts: Facts, function: FunctionNode) -> ast.expr | None:
    """Return the expression that makes what a function returns.

    Reductions, one local name and arithmetic with what the function is given are looked through, as
    in `jnp.mean((prediction - y) ** 2)`. None is returned where the function returns at several
    places.
    """
    returns = [n for n in own_nodes(function) if isinstance(n, ast.Return)]
    if isinstance(function, ast.Lambda):
        value: ast.expr | None = function.body
    elif len(returns) == 1 and function.body and returns[0] is function.body[-1]:
        value = returns[0].value
    else:
        return None
    if isinstance(value, ast.Tuple) and value.elts:
        value = value.elts[0]  # `return loss, aux`
    if value is None:
        return None
    value = _without_arithmetic(facts, function, value)
    if isinstance(value, ast.Name):
        bindings = facts.names.bindings(value)
        if len(bindings) == 1 and bindings[0].kind in {"assign", "other"}:
            node = bindings[0].node
            if isinstance(node, ast.Assign):  # also `loss, aux = f(x)`
                return without_reductions(node.value)
    return value


# Where a part is in a value: the keys, fields and indices that lead to it.
Path = tuple[str | int, ...]


class Part(NamedTuple):
    """A part of what a function returns.

    Attributes:
      path: where it is: `("logits",)` of `{"logits": x}` and of `Output(logits=x)`.
      is_exact: whether it is this alone, and not what is inside it too.
    """

    path: Path
    is_exact: bool = False


WHOLE = frozenset({Part(())})


def returns(facts: Facts, function: FunctionNode, call: ast.expr) -> bool:
    """Return whether a call makes what a function returns, on every path that makes the call.

    Looked through is what `returned_expression` looks through, and more local names. Other paths
    may return something else: `if remat: y = jax.checkpoint(f)(x)`, and `y = f(x)` in the `else`.
    """
    return is_among((), parts(facts, function, call))


def parts(
    facts: Facts, function: FunctionNode, call: ast.expr, of: frozenset[Part] = WHOLE
) -> frozenset[Part]:
    """Return the parts of what a function returns that certain parts of a call's result make.

    The first of a tuple counts for the whole: `return loss, aux`.

    Args:
      of: the parts of its result.
    """
    if isinstance(function, ast.Lambda):
        values: list[ast.expr | None] = [function.body]
    else:
        values = [n.value for n in own_nodes(function) if isinstance(n, ast.Return)]
    returned_parts = set()
    for value in filter(None, values):
        for part in _returned_parts(facts, value):
            path = _reached(facts, function, call, value, part.path)
            if path is not None and is_among(path, of):
                returned_parts.add(part)
    return frozenset(returned_parts)


def is_among(path: Path, of: frozenset[Part]) -> bool:
    """Return whether what is at a path is, or is in, one of several parts."""
    return any(
        path == part.path or (not part.is_exact and path[: len(part.path)] == part.path)
        for part in of
    )


def _returned_parts(facts: Facts, value: ast.expr, depth: int = 0) -> Iterator[Part]:
    """Yield the parts that an expression is written with; the whole where it has none."""
    origin = facts.names.single_origin(value) if isinstance(value, ast.Name) else value
    match origin:
        case ast.Tuple(elts=elements) | ast.List(elts=elements) if elements:
            yield Part((), is_exact=True)
            yield from (Part((i,)) for i in range(len(elements)))
            return
    origins = facts.names.origins(value) if isinstance(value, ast.Name) else (value,)
    nodes = [o for o in origins if isinstance(o, ast.AST)]
    written = [item for n in nodes for item in _written(facts, n).items()]
    written += _stored_keys(facts, value)
    if not written or depth > _MAX_NESTING:
        yield Part(())
        return
    for key, inner in written:
        for part in _returned_parts(facts, inner, depth + 1):
            yield Part((key, *part.path), part.is_exact)


def _written(facts: Facts, node: ast.AST) -> dict[str | int, ast.expr]:
    match node:
        case ast.Dict(keys=keys, values=values):
            return {
                key.value: value
                for key, value in zip(keys, values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, (str, int))
            }
        case ast.Call(func=func, args=args, keywords=keywords):
            name = getattr(func, "attr", getattr(func, "id", ""))
            if name != "dict" and not name[:1].isupper():
                return {}
            fields = _fields(facts, func)
            written: dict[str | int, ast.expr] = dict(zip(fields, args, strict=False))
            written |= {k.arg: k.value for k in keywords if k.arg is not None}
            written |= {i: written[f] for i, f in enumerate(fields) if f in written}
            return written
    return {}


def _fields(facts: Facts, func: ast.expr) -> list[str]:
    definition = facts.definition(facts.names.single_origin(func))
    cls = definition[1] if definition is not None else None
    if not isinstance(cls, ast.ClassDef):
        return []
    methods = {s.name for s in cls.body if isinstance(s, ast.FunctionDef)}
    if methods & {"__init__", "__call__", "setup"}:
        return []
    return [
        s.target.id
        for s in cls.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
    ]


def _stored_keys(facts: Facts, name: ast.expr) -> list[tuple[str | int, ast.expr]]:
    if not isinstance(name, ast.Name):
        return []
    bindings = facts.names.bindings(name)
    stored = []
    for load in facts.names.loads.get(name.id, ()):
        parent = facts.names.parents.get(load)
        match parent:
            case ast.Subscript(slice=ast.Constant(value=str() | int() as key), ctx=ast.Store()) if (
                facts.names.bindings(load) == bindings
            ):
                statement = facts.names.parents.get(parent)
                if isinstance(statement, ast.Assign) and parent in statement.targets:
                    stored.append((key, statement.value))
    return stored


def _reached(
    facts: Facts,
    function: FunctionNode,
    call: ast.expr,
    value: ast.expr,
    path: Path = (),
    depth: int = 0,
    seen: set[tuple[ast.expr, Path]] | None = None,
) -> Path | None:
    """Return which part of a call's result a part of an expression is, None where it is none."""
    seen = set() if seen is None else seen
    if not path:
        value = _without_arithmetic(facts, function, value, keys=True)
    while value is not call:
        match value:
            case ast.Subscript(value=inner, slice=ast.Constant(value=str() | int() as key)):
                value, path = inner, (key, *path)
            case ast.Attribute(value=inner, attr=attr):
                value, path = inner, (attr, *path)
            case _:
                break
    if value is call or depth > _MAX_NAMES or (value, path) in seen:
        return path if value is call else None
    seen.add((value, path))
    inside: list[tuple[ast.expr, Path]] = []
    match value:
        case ast.Tuple(elts=elements) | ast.List(elts=elements) if elements:
            index, rest = (path[0], path[1:]) if path else (0, ())
            if isinstance(index, int) and -len(elements) <= index < len(elements):
                inside.append((elements[index], rest))
        case ast.IfExp(body=body, orelse=orelse):
            inside += [(body, path), (orelse, path)]
        case ast.Name():
            stored = [v for k, v in _stored_keys(facts, value) if path and k == path[0]]
            inside += [(v, path[1:]) for v in stored] or _bound(facts, value, path)
        case _ if path and path[0] in (written := _written(facts, value)):
            inside.append((written[path[0]], path[1:]))
    for part, rest in inside:
        found = _reached(facts, function, call, part, rest, depth + 1, seen)
        if found is not None:
            return found
    return None


def _bound(facts: Facts, name: ast.Name, path: Path) -> list[tuple[ast.expr, Path]]:
    """Return what a part of a local name is a part of, by the assignments that reach it."""
    parts = []
    bindings = facts.names.bindings(name)
    for binding in bindings:
        node = binding.node
        if not isinstance(node, ast.Assign) or binding.kind not in {"assign", "other"}:
            continue
        if any(_may_follow(facts, node, o.node) for o in bindings if o is not binding):
            continue
        for target in node.targets:
            match target:
                case ast.Name(id=bound) if bound == name.id:
                    parts.append((node.value, path))
                case ast.Tuple(elts=elements) | ast.List(elts=elements):
                    names = [getattr(e, "id", None) for e in elements]
                    if name.id in names:
                        parts.append((node.value, (names.index(name.id), *path)))
    return parts


def _may_follow(facts: Facts, node: ast.AST, other: ast.AST) -> bool:
    around: dict[ast.AST, ast.AST] = {}
    for parent, child in facts.names.path(node):
        if isinstance(parent, (ast.For, ast.While, ast.AsyncFor)):
            return True
        around[parent] = child
        if isinstance(parent, FunctionNode):
            break
    if facts.names.order[other] < facts.names.order[node]:
        return False
    for parent, child in facts.names.path(other):
        if isinstance(parent, ast.If) and parent in around:
            return (child in parent.body) == (around[parent] in parent.body)
        if parent in around:
            return True
    return True


def _without_arithmetic(
    facts: Facts, function: FunctionNode, node: ast.expr, *, keys: bool = False
) -> ast.expr:
    """Return an expression without reductions, and without arithmetic with given values."""
    node = without_reductions(node, keys=keys)
    while isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        are_given = [_is_given(facts, function, side) for side in (node.left, node.right)]
        if are_given[0] == are_given[1]:
            break
        node = without_reductions(node.right if are_given[0] else node.left, keys=keys)
    return node


def _is_given(facts: Facts, function: FunctionNode, node: ast.expr) -> bool:
    """Return whether a value comes into a function from outside, and is not computed in it."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if not isinstance(node, ast.Name):
        return False
    bindings = facts.names.bindings(node)
    return bool(bindings) and all(
        b.kind == "param" or facts.names.function(b.node) is not function for b in bindings
    )


def own_nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions and classes inside it."""
    body = function.body
    todo: list[ast.AST] = [body] if isinstance(body, ast.expr) else list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, Definition):
            todo += children(node)


def returned(function: FunctionNode) -> list[ast.expr]:
    """Return the expressions that a function returns."""
    if isinstance(function, ast.Lambda):
        return [function.body]
    values = (n.value for n in own_nodes(function) if isinstance(n, ast.Return))
    return [value for value in values if value is not None]


def is_only(facts: Facts, function: FunctionNode, call: ast.expr) -> bool:
    """Return whether a function does nothing but set up one call, and hand its result on."""
    return returns(facts, function, call) and _all_set_up(
        facts, function, statements(function), call
    )


def _all_set_up(
    facts: Facts, function: FunctionNode, block: list[ast.stmt], call: ast.expr
) -> bool:
    """Return whether statements set up a call, hand its result on, or are in another arm."""
    for statement in block:
        match statement:
            case ast.Return() | ast.Assert() | ast.Pass():
                pass
            case ast.FunctionDef() | ast.Import() | ast.ImportFrom():
                pass
            case ast.Assign(value=value):
                if not sets_up(facts, value) and _reached(facts, function, call, value) is None:
                    return False
            case ast.If(body=body, orelse=orelse):
                around = {*facts.names.ancestors(call)}
                arms = [arm for arm in (body, orelse) if not around.isdisjoint(arm)]
                if not all(
                    _all_set_up(facts, function, arm, call) for arm in arms or (body, orelse)
                ):
                    return False
            case _:
                return False
    return True


def sets_up(facts: Facts, node: ast.expr) -> bool:
    """Return whether an expression computes nothing whose residuals are worth a thought."""
    for inner in ast.walk(node):
        match inner:
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in _RESHAPING:
                pass
            case ast.Call(func=func):
                names = facts.names.qualnames(func)
                if isinstance(func, ast.Name) and not facts.names.bindings(func):
                    names = (func.id,)
                if not names or not _SET_UP.issuperset(names):
                    return False
            case ast.BinOp(op=ast.MatMult() | ast.Pow()):
                return False
            case ast.Lambda() | ast.Await() | ast.Yield() | ast.YieldFrom() | ast.NamedExpr():
                return False
    return True
