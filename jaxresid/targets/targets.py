"""Load the Python object that `pkg.mod:fn` or `path/to/file.py:fn` names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxresid.base.errors import NOT_CAUGHT, InputsError, TargetError
from jaxresid.base.text.nearest import nearest
from jaxresid.targets.project_folders import add_project_folder, name_target


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target: the callable, its module, and the dotted name inside the module."""

    fun: Callable[..., Any]
    module: ModuleType
    attribute: str


def load(target: str, folder: str | None = None) -> Loaded:
    """Import the module of a target and return its attribute.

    The working directory is importable.

    Args:
      target: `module:function` or `file.py:function`.
      folder: a folder that is importable too, and comes before the working directory.

    Raises:
      TargetError: A part cannot be found; the message names it and the nearest name that exists.
    """
    place, colon, attribute = target.rpartition(":")
    if not colon or not place or not attribute:
        raise TargetError(no_function(target))
    module = load_module(place, folder)
    fun = attribute_of(module, attribute, place)
    if not callable(fun):
        raise TargetError(f"{target} is not callable: its type is {type(fun).__name__}")
    return Loaded(fun, module, attribute)


def load_module(place: str, folder: str | None = None) -> ModuleType:
    """Import a module, or a file as a module, and return it.

    Args:
      place: a module or a file.
      folder: a folder that is importable too, as the working directory is.

    Raises:
      TargetError: It cannot be found, or fails to import.
    """
    add_project_folder(os.getcwd())
    if folder is not None:
        add_project_folder(folder)
    return _import(place, folder)


def no_function(target: str) -> str:
    """Return the message for what is not `module:function`."""
    return (
        f"{target!r} does not name a function; write module:function,"
        " e.g. train.model:loss or train/model.py:loss"
    )


def load_reference(reference: str, module: ModuleType) -> Callable[[], Any]:
    """Return the function of `--inputs`: `module:attr`, or a bare name in the target's module.

    Args:
      reference: the value of `--inputs`.
      module: the target's module.

    Raises:
      TargetError: The function cannot be found.
      InputsError: A bare name stands for something that is not callable.
    """
    if ":" in reference:
        return load(reference).fun
    fun = attribute_of(module, reference, module.__name__)
    if not callable(fun):
        raise InputsError(
            f"--inputs {reference} is not a function but a value of type {type(fun).__name__}; name"
            " a function that takes no arguments and returns the inputs"
        )
    return fun  # type: ignore[no-any-return]


def default_inputs(loaded: Loaded) -> Callable[[], Any] | None:
    """Return `<fn>_inputs` or `example_inputs` of the target's module, None if it has neither."""
    own = loaded.attribute.replace(".", "_") + "_inputs"
    last = loaded.attribute.rpartition(".")[2] + "_inputs"
    for name in (own, last, "example_inputs"):
        found = getattr(loaded.module, name, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    return None


def attribute_of(module: ModuleType, attribute: str, place: str) -> Any:
    """Return what a module holds under a dotted name.

    Raises:
      TargetError: There is nothing of that name; the message has the nearest one.
    """
    found: Any = module
    walked = place
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            callables = {
                n: _attribute_or_none(found, n) for n in dir(found) if not n.startswith("_")
            }
            names = [n for n, value in callables.items() if callable(value)]
            near = nearest(part, names, cutoff=0.5)
            own = [n for n in names if _module_of(callables[n]) == module.__name__]
            if near:
                hint = f"; did you mean {near}?"
            elif own:
                hint = f"; it has {', '.join(own[:8])}{', ...' if len(own) > 8 else ''}"
            else:
                hint = ""
            raise TargetError(f"{walked} has no attribute {part!r}{hint}") from None
        except Exception as e:
            raise TargetError(f"reading {part!r} of {walked} raises {_error_text(e)}") from e
        walked = f"{walked}.{part}" if walked != place else f"{place}:{part}"
    return found


def function_name(fun: Callable[..., Any]) -> str | None:
    """Return the name of a function, None if it has none."""
    found = _attribute_or_none(fun, "__name__")
    return found if isinstance(found, str) else None


def _import(place: str, folder: str | None) -> ModuleType:
    if place.endswith(".py") or os.sep in place:
        return _import_file(place)
    name_target(place)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as e:
        missing = e.name or ""
        if place == missing or place.startswith(missing + "."):
            raise TargetError(_no_module(place, missing, folder)) from e
        raise TargetError(_error_in_module(place, e)) from e
    except NOT_CAUGHT:
        raise
    except BaseException as e:
        raise TargetError(_error_in_module(place, e)) from e


def _import_file(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        near = nearest(path.name, _python_files(path.parent))
        hint = f"; did you mean {os.path.join(os.path.dirname(place), near)}?" if near else ""
        raise TargetError(f"no such file: {place}{hint}")
    # A file inside a package is imported by its dotted name, so that its relative imports work.
    root, names = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    add_project_folder(str(root))
    if names[-1] == "__init__":
        names.pop()
    name = ".".join(names)
    name_target(name)
    known = sys.modules.get(name)
    if known is not None and _same_file(known, path):
        return known
    try:
        if len(names) > 1:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        if known is None:
            sys.modules[name] = module
        spec.loader.exec_module(module)
    except BaseException as e:
        if known is None:
            sys.modules.pop(name, None)
        if isinstance(e, NOT_CAUGHT):
            raise
        raise TargetError(_error_in_module(place, e)) from e
    return module


def _same_file(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path


def _python_files(folder: Path) -> list[str]:
    return [p.name for p in folder.glob("*.py")] if folder.is_dir() else []


def _no_module(place: str, missing: str, folder: str | None) -> str:
    hint = ""
    where = "the working directory" if folder is None else f"{folder}, the working directory"
    if "/" in place or os.path.exists(place.replace(".", os.sep) + ".py"):
        hint = f"; for a file write {place.replace('.', os.sep)}.py:function"
    else:
        near = nearest(missing, [f.removesuffix(".py") for f in _python_files(Path(folder or "."))])
        if near:
            hint = f"; did you mean {near}?"
    return f"no module named {missing!r} (looked in {where} and sys.path){hint}"


def _error_in_module(place: str, error: BaseException) -> str:
    """Return the module's own error, shortened, with the line of the file that raised it."""
    where = ""
    tb = error.__traceback__
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if not file.startswith("<frozen") and file != __file__:
            where = f" ({os.path.relpath(file)}, line {tb.tb_lineno})"
        tb = tb.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({os.path.relpath(error.filename)}, line {error.lineno})"
        error = SyntaxError(error.msg)
    return f"{place} fails to import: {_error_text(error)}{where}"


def _error_text(error: BaseException) -> str:
    """Return an error as `Type: first line`."""
    try:
        first = str(error).strip().splitlines()
    except Exception:  # even that is the user's code
        first = []
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__


def _module_of(value: Any) -> str:
    found = _attribute_or_none(value, "__module__")
    return found if isinstance(found, str) else ""


def _attribute_or_none(value: Any, name: str) -> Any:
    """Return an attribute, None where there is none or asking for it raises."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None
