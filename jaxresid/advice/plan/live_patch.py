"""Run the user's code in this process as it would be after an edit that is not written.

Functions that are there already, closures and methods of objects among them, get the code that
they would have; what a module defines otherwise is defined again in it. All of it is undone. What
JAX has traced before is not found again: see `jax_compat.intercept_bind`.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import gc
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxresid.advice.plan.source.file_edits import FileEdit


class UnpatchableError(Exception):
    """The reason why code cannot be changed in a running process."""


@dataclass(frozen=True, slots=True)
class _Change:
    """The changes of one file.

    Attributes:
      statements: The statements that its modules have to run again.
    """

    codes: tuple[tuple[CodeType, CodeType], ...]
    statements: tuple[ast.stmt, ...]


@contextlib.contextmanager
def patched(edits: Sequence[FileEdit], fun: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Make edits for the duration of the context, and yield the function as it is then.

    Raises:
      UnpatchableError: They cannot be made in a running process.
    """
    with contextlib.ExitStack() as undo:
        renewed: dict[int, tuple[Any, Any]] = {}
        for edit in edits:
            change = _change(edit)
            modules = _modules(str(edit.path))
            if change.statements and not modules:
                raise UnpatchableError(f"{edit.display_path} is not loaded as a module")
            for module in modules:
                _run(module, change.statements, undo, renewed)
            _recode(str(edit.path), change.codes, undo)
        for module in _each_once(sys.modules.values()):
            _rebind(module, renewed, undo)
        yield renewed[id(fun)][1] if id(fun) in renewed else fun


# -- what changes ----------------------------------------------------------------------------------


def _change(edit: FileEdit) -> _Change:
    path = str(edit.path)
    try:
        trees = ast.parse(edit.old), ast.parse(edit.new)
        old, new = (compile(raw, path, "exec", dont_inherit=True) for raw in (edit.old, edit.new))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise UnpatchableError(f"{edit.display_path} does not compile: {e}") from e
    statements = _statements(*trees, edit.display_path)
    again = {s.name for s in statements if isinstance(s, ast.FunctionDef)}
    before, after = _codes(old), _codes(new)
    changed = []
    for name, codes in before.items():
        if name.split(".")[0] in again:
            continue
        others = after.get(name, [])
        if len(others) != len(codes):
            if name.rpartition(".")[2] == "<lambda>":
                continue  # one that the edit puts into a function, which makes it anew
            raise UnpatchableError(f"cannot tell the functions {name} of {edit.display_path} apart")
        changed += [(a, b) for a, b in zip(codes, others, strict=True) if _plain(a) != _plain(b)]
    return _Change(tuple(changed), statements)


def _statements(old: ast.Module, new: ast.Module, shown: str) -> tuple[ast.stmt, ...]:
    """Return the statements of a module that are new or mean something else.

    What is inside functions does not count.
    """
    imports = {_outline(s) for s in old.body if _is_import(s)}
    changed: list[ast.stmt] = [s for s in new.body if _is_import(s) and _outline(s) not in imports]
    gone = [_outline(s) for s in old.body if not _is_import(s)]
    rest = [s for s in new.body if not _is_import(s)]
    if len(gone) != len(rest):
        raise UnpatchableError(f"the statements of {shown} have changed")
    for outline, statement in zip(gone, rest, strict=True):
        if _outline(statement) == outline:
            continue
        if not isinstance(statement, (ast.FunctionDef, ast.Assign, ast.AnnAssign)):
            raise UnpatchableError(f"{shown}:{statement.lineno} runs only at import")
        changed.append(statement)
    return tuple(changed)


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Import, ast.ImportFrom))


def _outline(statement: ast.stmt) -> str:
    """Return a statement as text, without what functions in it do when they are called."""
    copied = copy.deepcopy(statement)
    for node in ast.walk(copied):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [ast.Pass()]
        elif isinstance(node, ast.Lambda):
            node.body = ast.Constant(None)
    return ast.dump(copied)


def _codes(code: CodeType) -> dict[str, list[CodeType]]:
    codes: dict[str, list[CodeType]] = defaultdict(list)

    def enter(outer: CodeType) -> None:
        for const in outer.co_consts:
            if isinstance(const, CodeType):
                codes[const.co_qualname].append(const)
                enter(const)

    enter(code)
    return codes


def _plain(code: CodeType) -> tuple[Any, ...]:
    """Return what code does, regardless of the lines that it is on."""
    consts = tuple(
        _plain(c) if isinstance(c, CodeType) else (type(c), repr(c)) for c in code.co_consts
    )
    return code.co_name, code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars


# -- making it so ----------------------------------------------------------------------------------


def _modules(path: str) -> list[ModuleType]:
    real = os.path.realpath(path)
    return [
        m
        for m in _each_once(sys.modules.values())
        if isinstance(f := getattr(m, "__file__", None), str) and os.path.realpath(f) == real
    ]


def _each_once(modules: Iterable[Any]) -> list[ModuleType]:
    by_id = {id(m): m for m in list(modules) if isinstance(m, ModuleType)}
    return list(by_id.values())


def _run(
    module: ModuleType,
    statements: Sequence[ast.stmt],
    undo: contextlib.ExitStack,
    renewed: dict[int, tuple[Any, Any]],
) -> None:
    space = vars(module)
    before = dict(space)

    def restore() -> None:
        for name in space.keys() - before.keys():
            del space[name]
        space.update(before)

    undo.callback(restore)
    file = module.__file__ or "<module>"
    flags = _future(module)
    for statement in statements:
        body = ast.Module([statement], [])
        exec(compile(body, file, "exec", flags=flags, dont_inherit=True), space)
    for name, old in before.items():
        if space.get(name) is not old and not isinstance(old, ModuleType):
            renewed[id(old)] = old, space[name]


def _future(module: ModuleType) -> int:
    """Return the compiler flags of a module's `from __future__ import ...`."""
    import __future__

    flags = 0
    for name in __future__.all_feature_names:
        feature: Any = getattr(__future__, name)
        flag: int = feature.compiler_flag
        if vars(module).get(name) is feature:
            flags |= flag
    return flags


def _rebind(
    module: ModuleType, renewed: dict[int, tuple[Any, Any]], undo: contextlib.ExitStack
) -> None:
    space = vars(module)
    for name, value in list(space.items()):
        pair = renewed.get(id(value))
        if pair is not None and pair[0] is value:
            undo.callback(space.__setitem__, name, value)
            space[name] = pair[1]


def _all_objects() -> list[object]:
    """Return all objects that the garbage collector knows, those that `gc.freeze` hid too."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()


def _recode(
    path: str, codes: Sequence[tuple[CodeType, CodeType]], undo: contextlib.ExitStack
) -> None:
    if not codes:
        return
    real = os.path.realpath(path)
    new: dict[tuple[str, int], list[tuple[CodeType, CodeType]]] = defaultdict(list)
    for old, code in codes:
        new[old.co_qualname, old.co_firstlineno].append((old, code))
    names = {old.co_qualname for old, _ in codes}
    count = 0
    for function in _all_objects():
        if type(function) is not FunctionType or function.__code__.co_qualname not in names:
            continue
        old = function.__code__
        if os.path.realpath(old.co_filename) != real:
            continue
        pairs = new.get((old.co_qualname, old.co_firstlineno), [])
        if len(pairs) > 1:  # lambdas of one line
            pairs = [k for k in pairs if _plain(k[0]) == _plain(old)][:1]
        if not pairs:
            continue
        try:
            function.__code__ = pairs[0][1]
        except ValueError as e:  # it closes over other variables
            raise UnpatchableError(f"{old.co_qualname} closes over other variables") from e
        undo.callback(setattr, function, "__code__", old)
        count += 1
    if not count:
        raise UnpatchableError(f"no loaded function comes from {os.path.basename(path)}")
