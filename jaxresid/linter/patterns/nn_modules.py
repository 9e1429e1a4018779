"""Find the neural-network library that a class belongs to, and the class of an expression.

Shared by the framework rules (JXR6).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.base.violations import Fix
from jaxresid.linter.fixes import edits
from jaxresid.linter.resolve import apis, results
from jaxresid.linter.resolve.names import External, FunctionNode, Origin

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

ModuleClass = ast.ClassDef | External
_MAX_DEPTH = 8
# Members of flax.nnx that change their own state when they are called.
_STATEFUL = frozenset({"flax.nnx.BatchNorm", "flax.nnx.Dropout", "flax.nnx.SpectralNorm"})
# What hands on the elements of a list.
_CONTAINERS = frozenset({"list", "tuple", "reversed", "flax.nnx.List"})
_FROZEN = frozenset({"deterministic", "use_running_average"})


def library(facts: Facts, cls: ModuleClass | None, depth: int = 0) -> str | None:
    """Return the library from whose Module a class certainly derives, else None.

    It is `linen`, `nnx`, `equinox` or `haiku`.
    """
    if isinstance(cls, External):
        prefix, _, name = cls.qualname.rpartition(".")
        known = {"flax.linen": "linen", "flax.nnx": "nnx", "equinox.nn": "equinox"}
        return known.get(prefix) if name[:1].isupper() and name != "Module" else None
    if cls is None or depth > _MAX_DEPTH:
        return None
    for base in cls.bases:
        match facts.names.single_origin(base):
            case External(qualname) if qualname in apis.MODULE_BASES:
                return apis.MODULE_BASES[qualname]
            case ast.ClassDef() as parent:
                found = library(facts, parent, depth + 1)
                if found is not None:
                    return found
    return None


def owner(facts: Facts, function: ast.AST) -> ast.ClassDef | None:
    """Return the class whose instances a function is a method of, by its `self`; else None."""
    if not isinstance(function, ast.FunctionDef) or not function.args.args:
        return None
    names = {ast.unparse(d).rpartition(".")[2] for d in function.decorator_list}
    if names & {"staticmethod", "classmethod", "property"}:
        return None
    return facts.names.class_of(function)


class Instance(NamedTuple):
    """An instance of a class.

    Attributes:
      cls: the class.
      calls: the calls that give its constructor arguments, those of partials among them; none where
        only an annotation tells.
    """

    cls: ModuleClass
    calls: tuple[ast.Call, ...] = ()


def instance_class(facts: Facts, node: ast.expr) -> ModuleClass | None:
    """Return the class that an expression is certainly an instance of, else None."""
    return _only_class(instances(facts, node))


def attribute_class(facts: Facts, cls: ast.ClassDef, attr: str) -> ModuleClass | None:
    """Return the class of an attribute of the instances of a class, None where it is not known."""
    return _only_class(_of_attribute(facts, cls, attr, None, 0))


def _only_class(found: tuple[Instance, ...]) -> ModuleClass | None:
    classes = {i.cls for i in found}
    return classes.pop() if len(classes) == 1 else None


def instances(facts: Facts, node: ast.expr, depth: int = 0) -> tuple[Instance, ...]:
    """Return what an expression may be an instance of; nothing where it may be anything else.

    A checkpointed or partly bound class counts as the class, and a checkpointed instance as the
    instance: `nn.remat(Block)()`, `self.conv = hk.remat(self.conv)`.
    """
    if depth > _MAX_DEPTH:
        return ()
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            around = facts.names.class_around(node)
            return _of_attribute(facts, around, attr, node, depth) if around is not None else ()
        case ast.Attribute():
            return ()
        case ast.Subscript(value=container, slice=index) if not isinstance(index, ast.Slice):
            return _elements(facts, container, depth + 1)
        case ast.Name():
            bindings = facts.names.bindings(node)
            if [b.kind for b in bindings] == ["param"] and isinstance(bindings[0].node, ast.arg):
                return _annotated(facts, bindings[0].node.annotation)
            if [b.kind for b in bindings] == ["for"] and bindings[0].value is not None:
                return _elements(facts, bindings[0].value, depth + 1)
    return _all(_made(facts, o, depth) for o in facts.names.origins(node))


def _all(parts: Iterable[tuple[Instance, ...]]) -> tuple[Instance, ...]:
    """Return the instances of several origins; nothing where one of these has none."""
    found = list(parts)
    return tuple(dict.fromkeys(i for part in found for i in part)) if all(found) else ()


def _of_attribute(
    facts: Facts, cls: ast.ClassDef, attr: str, use: ast.expr | None, depth: int
) -> tuple[Instance, ...]:
    values = facts.names.assigned(cls, attr, use)
    if values:
        return _all(instances(facts, v, depth + 1) for v in values)
    for statement in cls.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if name == attr:
                return _annotated(facts, annotation)
    return ()


def _made(facts: Facts, origin: Origin, depth: int) -> tuple[Instance, ...]:
    """Return the instances that a call makes, or makes a checkpoint of."""
    if not isinstance(origin, ast.Call):
        return ()
    site = facts.site_of(origin)
    if site is not None:
        target = site.target if not facts.is_class(site) else None
        return instances(facts, target, depth + 1) if target is not None else ()
    return _all(_of_class(facts, o, (origin,), depth) for o in facts.names.origins(origin.func))


def _of_class(
    facts: Facts, origin: Origin, calls: tuple[ast.Call, ...], depth: int
) -> tuple[Instance, ...]:
    """Return the instances that calling a class makes: itself, checkpointed or partly bound."""
    match origin:
        case ast.ClassDef() | External():
            return (Instance(origin, calls),)
        case ast.Call() if depth <= _MAX_DEPTH:
            site = facts.site_of(origin)
            inner = site.target if site is not None and facts.is_class(site) else None
            if facts.is_partial(origin) and origin.args:
                inner, calls = origin.args[0], (*calls, origin)
            if inner is not None:
                origins = facts.names.origins(inner)
                return _all(_of_class(facts, o, calls, depth + 1) for o in origins)
    return ()


def _annotated(facts: Facts, annotation: ast.expr | None) -> tuple[Instance, ...]:
    if not isinstance(annotation, (ast.Name, ast.Attribute)):
        return ()
    cls = facts.names.single_origin(annotation)
    return (Instance(cls),) if isinstance(cls, (ast.ClassDef, External)) else ()


def _elements(facts: Facts, container: ast.expr, depth: int) -> tuple[Instance, ...]:
    """Return the instances that are the elements of a list that is written here."""
    if depth > _MAX_DEPTH:
        return ()
    origin = facts.names.single_origin(container)
    match origin:
        case ast.Call(args=[ast.List() | ast.ListComp() | ast.GeneratorExp() as inner]):
            origin = inner  # `nnx.List([...])`
        case ast.Call(args=[inner]) if not _CONTAINERS.isdisjoint(
            facts.names.qualnames(origin.func)
        ):
            return _elements(facts, inner, depth + 1)  # `reversed(self.blocks)`
    match origin:
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
            return instances(facts, element, depth + 1)
        case ast.List(elts=[]):
            appended = facts.names.appended.get(origin, [])
            return _all(instances(facts, e, depth + 1) for e in appended)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return _all(instances(facts, e, depth + 1) for e in elements)
    return ()


# -- state of nnx modules ------------------------------------------------------------------------


def update_in_call(facts: Facts, cls: ModuleClass | None, depth: int = 0) -> str | None:
    """Return, in words, what calling an instance changes in its state; None if nothing is seen."""
    if isinstance(cls, External):
        return cls.qualname.rpartition(".")[2] if cls.qualname in _STATEFUL else None
    if cls is None or library(facts, cls) != "nnx":
        return None
    method = facts.names.method(cls, "__call__")
    return update(facts, method, "self", cls, depth) if method is not None else None


def update(
    facts: Facts, function: FunctionNode, root: str, cls: ast.ClassDef, depth: int = 0
) -> str | None:
    """Return what a function changes in the state of the module that it calls `root`.

    None is returned where nothing is seen, or where the module itself is handed on or returned.
    """
    if depth > _MAX_DEPTH:
        return None
    found = None
    for node in results.own_nodes(function):
        if _passes_on(facts, node, root):
            return None
        found = found or _update_at(facts, node, root, cls, depth)
    return found


def update_in_closure(facts: Facts, function: FunctionNode) -> str | None:
    """Return what a function changes in an nnx module that it closes over; None if nothing is seen.

    Args:
      facts: the facts of the module.
      function: the function.
    """
    seen = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    for name in results.own_nodes(function):
        if not isinstance(name, ast.Name) or name.id in seen:
            continue
        seen.add(name.id)
        cls = facts.names.class_around(name) if name.id == "self" else instance_class(facts, name)
        if isinstance(cls, ast.ClassDef) and library(facts, cls) == "nnx":
            found = update(facts, function, name.id, cls)
            if found is not None:
                return found
    return None


def _passes_on(facts: Facts, node: ast.AST, root: str) -> bool:
    parent = facts.names.parents.get(node)
    return (
        isinstance(node, ast.Name)
        and node.id == root
        and not isinstance(parent, ast.Attribute)
        and not (isinstance(parent, ast.Call) and parent.func is node)
    )


def _update_at(facts: Facts, node: ast.AST, root: str, cls: ast.ClassDef, depth: int) -> str | None:
    for target in _targets(node):
        if _root(target) == root and not isinstance(target, ast.Name):
            return ast.unparse(target)
    if not isinstance(node, ast.Call):
        return None
    match node.func:
        case ast.Name(id=name) if name == root:
            return update_in_call(facts, cls, depth + 1)
        case ast.Attribute(value=ast.Name(id=name), attr=attr) if name == root:
            if attr == "sow":
                return f"{root}.sow"
            method = facts.names.method(cls, attr)
            if method is not None and method.args.args:
                return update(facts, method, method.args.args[0].arg, cls, depth + 1)
            return _update_by_call(facts, node, attribute_class(facts, cls, attr), depth)
        case ast.Name():
            return _update_by_call(facts, node, instance_class(facts, node.func), depth)
    return None


def _update_by_call(
    facts: Facts, call: ast.Call, cls: ModuleClass | None, depth: int
) -> str | None:
    frozen = any(
        k.arg in _FROZEN and isinstance(k.value, ast.Constant) and k.value.value is True
        for k in call.keywords
    )
    return None if frozen else update_in_call(facts, cls, depth + 1)


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            yield from targets
        case ast.AugAssign(target=target):
            yield target


def _root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


# -- the other library's checkpoint --------------------------------------------------------------


def swap_checkpoint_api(
    facts: Facts, site: Site, qualname: str, keywords: frozenset[str]
) -> Fix | None:
    """Return the fix that calls another library's checkpoint instead.

    None is returned unless the module already has a name for the library and the checkpoint takes
    the same keywords.

    Args:
      facts: the facts of the module.
      site: the checkpoint to replace.
      qualname: the dotted name of the other checkpoint.
      keywords: the keywords that the other checkpoint takes.
    """
    callee = site.node.func if isinstance(site.node, ast.Call) else site.node
    if site.form == "decorator" and isinstance(site.node, ast.Call):
        return None
    name = edits.name_for(facts, qualname)
    if name is None or not isinstance(callee, (ast.Name, ast.Attribute)):
        return None
    if site.arguments.dynamic or not keywords.issuperset(site.arguments.keywords):
        return None
    if site.calls and site.calls != (site.node,):
        return None
    edit = edits.replace(facts.source, callee, name)
    return Fix(f"Use `{name}`", (edit,), "unsafe")
