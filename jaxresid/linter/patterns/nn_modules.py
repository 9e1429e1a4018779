"""Find the neural-network library that a class belongs to, and the class of an expression.

Shared by the framework rules (JXR6).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.resolve import apis, results
from jaxresid.linter.resolve.names import External, FunctionNode
from jaxresid.violations import Fix

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

ModuleClass = ast.ClassDef | External
_MAX_DEPTH = 8
# Members of flax.nnx that change their own state when they are called.
_STATEFUL = frozenset({"flax.nnx.BatchNorm", "flax.nnx.Dropout", "flax.nnx.SpectralNorm"})
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


def instance_class(facts: Facts, node: ast.expr, depth: int = 0) -> ModuleClass | None:
    """Return the class that an expression is certainly an instance of, else None."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        around = facts.names.class_around(node)
        if node.value.id == "self" and around is not None:
            return attribute_class(facts, around, node.attr, depth + 1)
        return None
    if isinstance(node, ast.Name):
        bindings = facts.names.bindings(node)
        if len(bindings) != 1:
            return None
        binding = bindings[0]
        if binding.kind == "param" and isinstance(binding.node, ast.arg):
            return _annotated_class(facts, binding.node.annotation)
        if binding.kind == "for" and binding.element and binding.value is not None:
            return _element_class(facts, binding.value, depth + 1)
    return _instantiated_class(facts, facts.names.single_origin(node))


def attribute_class(
    facts: Facts, cls: ast.ClassDef, attr: str, depth: int = 0
) -> ModuleClass | None:
    """Return the class of an attribute of the instances of a class, None where it is not known."""
    values = facts.names.self_assigned.get((cls, attr), [])
    if len(values) == 1:
        return instance_class(facts, values[0], depth + 1)
    for statement in cls.body if not values else ():
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if name == attr:
                return _annotated_class(facts, annotation)
    return None


def _instantiated_class(facts: Facts, origin: object) -> ModuleClass | None:
    if not isinstance(origin, ast.Call):
        return None
    cls = facts.names.single_origin(origin.func)
    return cls if isinstance(cls, (ast.ClassDef, External)) else None


def _annotated_class(facts: Facts, annotation: ast.expr | None) -> ModuleClass | None:
    if not isinstance(annotation, (ast.Name, ast.Attribute)):
        return None
    cls = facts.names.single_origin(annotation)
    return cls if isinstance(cls, (ast.ClassDef, External)) else None


def _element_class(facts: Facts, container: ast.expr, depth: int) -> ModuleClass | None:
    """Return the class of the elements of a list that is written here."""
    origin = facts.names.single_origin(container)
    match origin:
        case ast.Call(args=[ast.List() | ast.ListComp() as inner]):  # `nnx.List([...])`
            origin = inner
    match origin:
        case ast.ListComp(elt=element):
            return instance_class(facts, element, depth)
        case ast.List(elts=[_, *_] as elements):
            classes = {instance_class(facts, e, depth) for e in elements}
            return classes.pop() if len(classes) == 1 else None
    return None


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
