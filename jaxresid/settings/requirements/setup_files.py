"""Read the requirements on jax of setup.cfg and setup.py, without running anything."""

from __future__ import annotations

import ast
import configparser
from collections.abc import Mapping

from jaxresid.settings.requirements.versions import Groups, groups_of


def setup_cfg_requirements(text: str) -> Groups:
    """Return the requirements on jax of a setup.cfg; none where it is not understood."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return ()
    always = parser.get("options", "install_requires", fallback="").splitlines()
    extras: list[list[str]] = []
    if parser.has_section("options.extras_require"):
        extras = [value.splitlines() for _, value in parser.items("options.extras_require")]
    return groups_of(_plain(always), map(_plain, extras))


def _plain(lines: list[str]) -> list[str]:
    return [line.partition(" #")[0].strip() for line in lines]


def setup_py_requirements(text: str) -> Groups:
    """Return the requirements on jax of a setup.py, as far as it writes them out.

    Lists count where they are given to `setup`, by names of the module's too, and what is added to
    them where they are assigned or passed. What a function reads or makes does not.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names = _assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_setup(node.func):
            given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
            for keyword in node.keywords:
                if keyword.arg is None:
                    given.update(_items(keyword.value, names))
            always = _strings(given.get("install_requires"), names)
            extras = _items(given.get("extras_require"), names)
            return groups_of(always, [_strings(value, names) for value in extras.values()])
    return ()


def _is_setup(function: ast.expr) -> bool:
    match function:
        case ast.Name(id="setup") | ast.Attribute(attr="setup"):
            return True
        case _:
            return False


_Names = Mapping[str, ast.expr]


def _assigned(tree: ast.Module) -> _Names:
    """Return what the module's names are assigned, the last time."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found.update({t.id: node.value for t in node.targets if isinstance(t, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
    return found


def _strings(node: ast.expr | None, names: _Names, depth: int = 20) -> list[str]:
    """Return the strings of a list that is written out, alone or joined by `+`."""
    if node is None or not depth:
        return []
    match node:
        case ast.Constant(value=str(text)):
            return text.splitlines()
        case ast.Name(id=name):
            return _strings(names.get(name), names, depth - 1)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [text for part in parts for text in _strings(part, names, depth - 1)]
        case ast.Starred(value=value):
            return _strings(value, names, depth - 1)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _strings(left, names, depth - 1) + _strings(right, names, depth - 1)
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
            return _strings(_items(names.get(name), names).get(str(key)), names, depth - 1)
        case _:
            return []


def _items(node: ast.expr | None, names: _Names) -> dict[str, ast.expr]:
    """Return the items of a dict that is written out, by their keys."""
    if isinstance(node, ast.Name):
        node = names.get(node.id)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    if not isinstance(node, ast.Dict):
        return {}
    pairs = zip(node.keys, node.values, strict=True)
    return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
