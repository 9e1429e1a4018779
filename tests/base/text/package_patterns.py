"""Collect the regular expressions of the package, with how each is used."""

import ast
import builtins
import importlib
import re
import runpy
from pathlib import Path
from typing import NamedTuple

import jaxresid

_HOME = Path(jaxresid.__file__).parent
_ACTION = _HOME.parent / "action"
_CALLS = {"compile", "sub", "subn", "match", "search", "split", "findall", "finditer", "fullmatch"}
_METHODS = _CALLS - {"compile"}
_ALL = ("match", "fullmatch", "finditer")


class Used(NamedTuple):
    """A pattern, where it is, and the methods that are called on it."""

    place: str
    pattern: re.Pattern
    methods: tuple[str, ...]


def patterns():
    """Return the patterns of the package and of the Action, in the order of their places."""
    files = [*sorted(_HOME.rglob("*.py")), *sorted(_ACTION.glob("*.py"))]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    uses = {path: _uses(tree) for path, tree in trees.items()}
    public = {}
    for of_module in uses.values():
        for name, methods in of_module.items():
            public.setdefault(name, set()).update(methods)
    return [
        used
        for path, tree in trees.items()
        for used in _of_module(path, tree, {**public, **uses[path]})
    ]


def _uses(tree):
    """Return the methods that are called on each name."""
    uses = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _METHODS:
            uses.setdefault(_last_name(node.value), set()).add(node.attr)
    return uses


def _last_name(node):
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "id", getattr(node, "attr", None))


def _of_module(path, tree, uses):
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in _CALLS
    ]
    if not calls:
        return
    namespace = _namespace(path)
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for inside in ast.walk(node.value):
                names.setdefault(inside, []).extend(map(_last_name, targets))
        elif isinstance(node, ast.FunctionDef):
            for inside in ast.walk(node):
                if isinstance(inside, ast.Return):
                    names.setdefault(inside.value, []).append(node.name)
    for call in calls:
        pattern = _pattern(call, namespace)
        if pattern is None:
            continue
        methods = {call.func.attr} if call.func.attr != "compile" else set()
        for name in names.get(call, ()) if not methods else ():
            methods |= uses.get(name, set())
        place = f"{path.relative_to(_HOME.parent)}:{call.lineno}"
        yield Used(place, pattern, tuple(sorted({_kind(m) for m in methods})) or _ALL)


def _kind(method):
    return method if method in {"match", "fullmatch"} else "finditer"


def _namespace(path):
    parts = path.relative_to(_HOME.parent).with_suffix("").parts
    if parts[0] == "action":
        return runpy.run_path(str(path), run_name="comment")
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return vars(importlib.import_module(name))


class _Unknown(dict):
    """A namespace in which a name that only a function knows is a word."""

    def __missing__(self, name):
        return getattr(builtins, name, "word")


def _pattern(call, namespace):
    """Return the pattern of a call, None where only running the program tells it."""
    if not call.args:
        return None
    names = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "flags")]
    flags = call.args[1:2] if call.func.attr == "compile" else []
    values = []
    for expression in [*names, *flags]:
        code = compile(ast.Expression(expression), "<pattern>", "eval")
        try:
            values.append(eval(code, {}, _Unknown(namespace)))
        except (TypeError, AttributeError):
            return None
    if not isinstance(values[0], (str, bytes)) or isinstance(call.args[0], ast.Name):
        if not isinstance(values[0], re.Pattern):
            return None
        return values[0]
    return re.compile(values[0], values[1] if len(values) > 1 else 0)


if __name__ == "__main__":
    for use in patterns():
        print(f"{use.place}: {', '.join(use.methods)} {use.pattern.pattern!r}")
