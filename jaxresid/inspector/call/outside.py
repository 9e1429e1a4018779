"""Find what a function reaches that is no argument: by closure, as a global, through `self`.

Looked for are objects whose arrays are changed in place, see `objects`. The search follows what the
code of the function and of the user's functions that it names can reach, up to a fixed depth and
number of objects.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.call.objects import entries, is_module, is_variable

_MOST = 50_000  # objects looked at
_DEEPEST = 40
# Nothing that a user would change is reached by way of their code.
_LIBRARIES = frozenset(
    "jax jaxlib numpy scipy flax optax equinox haiku keras orbax chex jaxtyping typing_extensions"
    " jaxresid treescope etils absl".split()
)


@dataclass(frozen=True, slots=True)
class Outside:
    """The objects that a function reaches and that are no arguments.

    Attributes:
      variables: NNX Variables with their paths, `model.linear.kernel`.
      refs: `jax.Ref`s with theirs.
      owners: objects, dicts and lists that a function may put something else into, with theirs.
    """

    variables: tuple[tuple[str, Any], ...] = ()
    refs: tuple[tuple[str, Any], ...] = ()
    owners: tuple[tuple[str, Any], ...] = ()


def outside(fun: Callable[..., Any]) -> Outside:
    """Return what a function reaches that is no argument."""
    search = _ReachSearch()
    search.look(fun, "", 0)
    return Outside(tuple(search.variables), tuple(search.refs), tuple(search.owners))


class _ReachSearch:
    def __init__(self) -> None:
        self.variables: list[tuple[str, Any]] = []
        self.refs: list[tuple[str, Any]] = []
        self.owners: list[tuple[str, Any]] = []
        self._seen: dict[int, Any] = {}

    def look(self, value: Any, path: str, depth: int) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen or depth > _DEEPEST:
            return
        if len(self._seen) >= _MOST:
            return
        self._seen[id(value)] = value  # kept, or its id could be another's
        if is_variable(value):
            self.variables.append((path, value))
            return
        if jax_compat.is_ref(value):
            self.refs.append((path, value))
            return
        if type(value) in (dict, list):
            self.owners.append((path, value))
        if type(value) in (dict, list, tuple):
            items = [(inner_path(path, value, key), v) for key, v in entries(value).items()]
        else:
            items = list(self._of_object(value, path))
        for name, item in items:
            self.look(item, name, depth + 1)

    def _of_object(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, type | types.ModuleType) or hasattr(type(value), "aval"):
            return
        if isinstance(value, types.MethodType):
            yield path or "self", value.__self__
            yield path, value.__func__
            return
        if isinstance(value, functools.partial):
            yield path, value.func
            yield from zip(_parameters(value.func, len(value.args)), value.args, strict=True)
            yield from value.keywords.items()
            return
        if isinstance(value, types.FunctionType):
            yield from _of_function(value)
            return
        wrapped = getattr(type(value), "__wrapped__", None) or entries(value).get("__wrapped__")
        if wrapped is None and callable(value):
            try:
                wrapped = getattr(value, "__wrapped__", None)
            except Exception:  # an object may answer as it likes
                wrapped = None
        if wrapped is not None:
            yield path, wrapped
        home = type(value).__module__.partition(".")[0]
        children = () if is_module(value) else _children(value)
        yield from ((f"{path}{key}", child) for key, child in children)
        if children:
            return
        if is_module(value) or (home not in _LIBRARIES and home not in sys.stdlib_module_names):
            self.owners.append((path, value))
            for name, v in entries(value).items():
                yield inner_path(path, value, name), v


_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
_PLAIN = (str, bytes, int, float, complex, bool, type(None), types.BuiltinFunctionType)


def inner_path(path: str, owner: Any, key: Any) -> str:
    """Return the path of an entry of an owner."""
    if type(owner) in (dict, list, tuple):
        return f"{path}[{key!r}]"
    if str(key).isdigit():  # what an nnx.List holds
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else str(key)


def _children(value: Any) -> Sequence[tuple[str, Any]]:
    tree_util = jax_compat.import_jax().tree_util
    try:
        children, _ = tree_util.tree_flatten_with_path(
            value, is_leaf=lambda node: node is not value
        )
    except Exception:  # a user's class, which may do as it likes
        return ()
    return [(tree_util.keystr(path), child) for path, child in children if path]


def _parameters(fun: Any, count: int) -> list[str]:
    try:
        names = list(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        names = []
    return [names[i] if i < len(names) else f"args[{i}]" for i in range(count)]


def _of_function(fun: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what the code of a function names: from around it, and globals."""
    home = (fun.__module__ or "").partition(".")[0]
    wrapped = vars(fun).get("__wrapped__")
    if wrapped is not None:
        yield "", wrapped
    if home in _LIBRARIES or home in sys.stdlib_module_names:
        # A library's wrapper holds the user's function.
        for cell in fun.__closure__ or ():
            value = _content(cell)
            if callable(value):
                yield "", value
        return
    for name, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=False):
        yield name, _content(cell)
    for name in _names(fun.__code__):
        if name in fun.__globals__:
            value = fun.__globals__[name]
            if isinstance(value, types.ModuleType):
                continue
            yield name, value
    for value in (*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values()):
        yield "", value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


@functools.cache
def _names(code: types.CodeType) -> list[str]:
    names = dict.fromkeys(
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in _GLOBALS
    )
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names.update(dict.fromkeys(_names(const)))
    return list(names)
