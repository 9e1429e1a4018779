"""Find the part of a source file that a traced location and function name refer to."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxresid.advice.plan.source.file_edits import FileRewrite, FileRewrites
from jaxresid.linter.patterns import nn_modules as modules
from jaxresid.linter.resolve.facts import Facts, Site
from jaxresid.linter.resolve.names import External, Origin
from jaxresid.results import Location

# How many steps (aliases, instances, decorators) a callee is followed.
_MAX_DEPTH = 6
_LIBRARIES = {
    "flax.linen": "linen",
    "flax.nnx": "nnx",
    "equinox": "equinox",
    "haiku": "haiku",
}


def last_name(function: str) -> str:
    """Return the last part of a qualified name: `__call__` of `Block.__call__`."""
    return function.rpartition(".")[2]


def calls_at(file: FileRewrite, location: Location) -> tuple[ast.Call, ...]:
    """Return the calls that begin at a location, innermost first.

    Without a column, or where none begins at it, they are the calls that its line is a part of.
    """
    source, calls = file.source, file.facts.names.calls
    begun = [
        c
        for c in calls
        if location.column is not None
        and (c.lineno, source.span(c).column) == (location.line, location.column)
    ]
    on_line = [c for c in calls if c.lineno <= location.line <= (c.end_lineno or c.lineno)]
    return tuple(sorted(begun or on_line, key=lambda c: (c.end_lineno or 0, c.end_col_offset or 0)))


def calls_reached(
    file: FileRewrite, nodes: tuple[ast.AST, ...], depth: int = 0
) -> Iterator[ast.AST]:
    """Yield calls, and in turn the calls and functions that made what they call.

    The decorators of such a function are there too.
    """
    names = file.facts.names
    for node in nodes if depth < _MAX_DEPTH else ():
        yield node
        if isinstance(node, ast.FunctionDef):
            yield from node.decorator_list
        if not isinstance(node, ast.Call):
            continue
        origins = [o for o in names.origins(node.func) if isinstance(o, ast.AST)]
        if isinstance(node.func, ast.Call):
            origins.append(node.func)
        yield from calls_reached(file, tuple(origins), depth + 1)


def callee_name(facts: Facts, node: ast.expr) -> str:
    """Return the last name of what is called: `block` of `self.block`, through jit and partial."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return callee_name(facts, value)
        case ast.Lambda():
            return "<lambda>"
        case ast.Call(func=func, args=args):
            return callee_name(facts, args[0]) if args else callee_name(facts, func)
    return ""


def is_called(facts: Facts, node: ast.expr, function: str) -> bool:
    """Return whether an expression may be the function of this (qualified) name."""
    name = last_name(function)
    if callee_name(facts, node) == name:
        return True
    return any(_name_of(o) == name for o in facts.names.origins(node))


def _name_of(origin: Origin) -> str | None:
    match origin:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Lambda():
            return "<lambda>"
        case External(qualname):
            return qualname.rpartition(".")[2]
    return None


def sites_reached(
    files: FileRewrites, file: FileRewrite, node: ast.expr, depth: int = 0
) -> Iterator[tuple[FileRewrite, Site]]:
    """Yield the checkpoints that the value of an expression went through, each with its file.

    These are the checkpoints written here, around what made the value, and on the definition of
    what it is, in whichever file of the user's.
    """
    if depth > _MAX_DEPTH:
        return
    facts = file.facts
    for origin in facts.names.origins(node):
        site = facts.site_of(origin) if isinstance(origin, ast.AST) else None
        if site is not None:
            yield file, site
            continue
        match origin:
            case ast.Call():
                yield from sites_reached(files, file, origin.func, depth + 1)
                inner = facts.inside(origin)
                if inner is not origin and isinstance(inner, ast.AST):
                    found = facts.site_of(inner)
                    if found is not None:
                        yield file, found
            case External(qualname):
                other = definition_of(files, qualname)
                if other is not None:
                    there, definition = other
                    found = there.facts.site_of(definition)
                    if found is not None:
                        yield there, found


def definition_of(files: FileRewrites, qualname: str) -> tuple[FileRewrite, ast.AST] | None:
    """Return the definition of something in another loaded module of the user's, with its file."""
    module, _, name = qualname.rpartition(".")
    path = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(path, str) or not path.endswith(".py") or not files.is_writable(path):
        return None
    there = files.at(path, 1)
    bindings = there.facts.names.root.bindings.get(name, [])
    node = bindings[0].value or bindings[0].node if len(bindings) == 1 else None
    return (there, node) if node is not None else None


def related(files: FileRewrites, file: FileRewrite) -> tuple[str, ...]:
    """Return the other loaded files of the user's that are related to a file by imports.

    They are the files that it imports, what those import in turn, and the files that import it. Who
    imports whom is read off the loaded modules, not their source.
    """
    loaded = {
        path: module
        for module in list(sys.modules.values())
        if isinstance(path := getattr(module, "__file__", None), str)
    }
    paths = set(files.modules())
    here = str(file.path)
    found: set[str] = set()
    wanted = _imported(file.facts) & paths
    while wanted:
        path = wanted.pop()
        found.add(path)
        wanted |= (_files_of(loaded[path]) & paths) - found
    found |= {path for path in paths if here in _files_of(loaded[path])}
    return tuple(sorted(found - {here}))


def _files_of(module: Any) -> set[str]:
    """Return the files of the modules that a module holds, whole or members of."""
    names = {
        getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None)
        for value in list(vars(module).values())
    }
    paths = (getattr(sys.modules.get(n), "__file__", None) for n in names if isinstance(n, str))
    return {path for path in paths if isinstance(path, str)}


def _imported(facts: Facts) -> set[str]:
    """Return the files of the loaded modules that a file imports, whole or names of."""
    found = set()
    for bindings in facts.names.root.bindings.values():
        for name in (b.qualname for b in bindings if b.kind == "import"):
            for module in (name, name.rpartition(".")[0]):
                path = getattr(sys.modules.get(module), "__file__", None)
                if isinstance(path, str):
                    found.add(path)
    return found


def checkpointed_name(facts: Facts, site: Site) -> str:
    """Return the name of what a site checkpoints, as a trace calls it."""
    if site.definition is not None:
        return site.definition.name
    target = facts.target(site)
    if target is not None:
        return "<lambda>" if isinstance(target, ast.Lambda) else target.name
    return callee_name(facts, site.target) if site.target is not None else ""


def module_library(files: FileRewrites, file: FileRewrite, function: str) -> str | None:
    """Return the library of the module class that a method such as `Block.__call__` belongs to.

    It is one of `linen`, `nnx`, `equinox` and `haiku`, or `jax` for a class of none of them or a
    plain function; None where the class cannot be found.
    """
    owner = function.rpartition(".")[0].rpartition(".")[2]
    if not owner or not owner.isidentifier():
        return "jax"
    facts = file.facts
    for cls in facts.names.classes:
        if cls.name == owner:
            known = modules.library(facts, cls)
            if known is not None:
                return known
    if any(f.name == owner for f in facts.names.functions if not isinstance(f, ast.Lambda)):
        return "jax"  # a function inside a function
    found = {_library(cls) for cls in loaded_classes(files, file, owner)}
    if not found and any(cls.name == owner and not cls.bases for cls in facts.names.classes):
        return "jax"
    return found.pop() if len(found) == 1 else None


def loaded_classes(files: FileRewrites, file: FileRewrite, name: str) -> list[type]:
    """Return the loaded classes of a name that are the user's own, each where it is defined.

    Those in files that are related to this one come before all others: if there are any, only those
    are returned.
    """
    found: dict[str, list[type]] = {}
    for module in list(sys.modules.values()):
        value: Any = getattr(module, "__dict__", {}).get(name)
        path = getattr(module, "__file__", None)
        is_defined = isinstance(value, type) and value.__module__ == module.__name__
        if is_defined and path is not None and files.is_writable(path):
            found.setdefault(path, []).append(value)
    near = {str(file.path), *related(files, file)} & found.keys() if len(found) > 1 else set()
    return [cls for path in near or found for cls in found[path]]


def defining_library(path: str) -> str | None:
    """Return the library of modules, as `module_library` calls it, that a file belongs to."""
    dotted = ".".join(Path(path).with_suffix("").parts)
    return next((lib for prefix, lib in _LIBRARIES.items() if f".{prefix}." in dotted), None)


def _library(cls: type) -> str:
    for base in cls.__mro__:
        for prefix, library in _LIBRARIES.items():
            if base.__module__ == prefix or base.__module__.startswith(f"{prefix}."):
                return library
    return "jax"
