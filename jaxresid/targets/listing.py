"""List the functions of a file that could be targets, from its text: nothing is imported."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxresid.base.errors import TargetError

_INPUTS = "_inputs"
_SHARED_INPUTS = "example_inputs"
# Words in the names of what people differentiate or train with.
_LIKELY = re.compile(r"loss|step|train|objective|forward", re.IGNORECASE)
_TESTS = ("test_", "pytest_")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function of a file that could be a target.

    Attributes:
      name: its name.
      signature: its parameters as they are written, without types: `(params, batch, *, train=...)`.
      required: the names of the positional parameters that need an argument.
      inputs: the function that makes its inputs by default, None if there is none.
      builds: whether it takes nothing and returns a function with its arguments, for --build.
    """

    name: str
    signature: str
    required: tuple[str, ...] = ()
    inputs: str | None = None
    builds: bool = False


def file_of(place: str, folders: Iterable[str] = (".",)) -> Path | None:
    """Return the file of `train/model.py` or `train.model`, None where there is none.

    Args:
      place: a file, or a module.
      folders: where modules are looked for.
    """
    if place.endswith(".py") or os.sep in place:
        path = Path(place)
        return path if path.suffix == ".py" and path.is_file() else None
    if not re.fullmatch(r"\w+(\.\w+)*", place):
        return None
    base = place.replace(".", os.sep)
    for folder in folders:
        for name in (f"{base}.py", os.path.join(base, "__init__.py")):
            if (path := Path(folder, name)).is_file():
                return path
    return None


def functions_of(path: Path) -> tuple[ast.FunctionDef, ...]:
    """Return the functions of a file's top level, in the order of the file.

    Raises:
      TargetError: The file cannot be read or parsed.
    """
    return tuple(_functions(_parsed(path).body))


def candidates_of(path: Path) -> tuple[Candidate, ...]:
    """Return the functions of a file that could be targets, the likeliest first.

    Raises:
      TargetError: The file cannot be read or parsed.
    """
    functions = functions_of(path)
    names = {function.name for function in functions}
    found = [
        candidate
        for function in {function.name: function for function in functions}.values()
        if (candidate := _candidate(function, names)) is not None
    ]
    return tuple(sorted(found, key=_unlikeliness))


def _unlikeliness(candidate: Candidate) -> tuple[bool, bool, bool]:
    is_likely = _LIKELY.search(candidate.name) is not None
    return candidate.builds, candidate.inputs is None, not is_likely


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except OSError as e:
        raise TargetError(f"cannot read {path}: {e.strerror or e}") from e
    except (SyntaxError, ValueError, RecursionError) as e:
        line = f" (line {e.lineno})" if isinstance(e, SyntaxError) and e.lineno else ""
        what = e.msg if isinstance(e, SyntaxError) else e
        raise TargetError(f"{path} is not Python: {what}{line}") from e


def _functions(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a module, also under conditions and in `try`."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef):
            yield statement
        elif isinstance(statement, ast.If | ast.Try) and not _is_main(statement):
            yield from _functions((*statement.body, *statement.orelse))


def _is_main(statement: ast.If | ast.Try) -> bool:
    """Return whether a statement is what a module does where it is run as a script."""
    test = getattr(statement, "test", None)
    return isinstance(test, ast.Compare) and ast.unparse(test.left) == "__name__"


def _candidate(function: ast.FunctionDef, names: set[str]) -> Candidate | None:
    """Return a function as a candidate, None if it can hardly be a target."""
    name, arguments = function.name, function.args
    if name.startswith(("_", *_TESTS)) or name.endswith(_INPUTS):
        return None
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[: len(positional) - len(arguments.defaults)]
    if not (positional or arguments.vararg or arguments.kwonlyargs):
        return Candidate(name, "()", builds=True) if _builds(function) else None
    inputs = next((n for n in (f"{name}{_INPUTS}", _SHARED_INPUTS) if n in names), None)
    return Candidate(name, _signature(arguments), tuple(each.arg for each in required), inputs)


def _builds(function: ast.FunctionDef) -> bool:
    """Return whether a function returns a lambda, or a function defined in it, and arguments."""
    inner = {each.name for each in ast.walk(function) if isinstance(each, ast.FunctionDef)}
    for each in ast.walk(function):
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Tuple) and each.value.elts:
            first = each.value.elts[0]
            if isinstance(first, ast.Lambda) or (isinstance(first, ast.Name) and first.id in inner):
                return True
    return False


def _signature(arguments: ast.arguments) -> str:
    """Return parameters as text, without types, defaults as `...`."""
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    first_default = len(positional) - len(arguments.defaults)
    parts = [name if i < first_default else f"{name}=..." for i, name in enumerate(positional)]
    if arguments.vararg:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parts += [each.arg if default is None else f"{each.arg}=..." for each, default in pairs]
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    return f"({', '.join(parts)})"
