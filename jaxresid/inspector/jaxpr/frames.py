"""Turn JAX tracebacks into the user's frames.

A traceback holds raw frames, innermost first, down to the interpreter's start. We keep what lies
below our own call of the target, without JAX's machinery, and tell the user's own code from the
libraries that it calls.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import os
import re
import site
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.home import FOLDER
from jaxresid.base.text.notebook_cells import cell_name
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import Location

# What calls the target.
_ROOTS = tuple(
    os.path.join(FOLDER, "inspector", *name)
    for name in (("call", "calling.py"), ("trace", "function.py"))
)

_ADAPTERS = os.path.join(FOLDER, "adapters", "")
# What it computes is part of the program.
_LOSSES = os.path.join(_ADAPTERS, "standard_losses.py")
# The parts of jax that are a library of functions to call, not machinery that calls functions.
_JAX_LIBRARY = tuple(
    os.path.join(*path.split("/"))
    for path in (
        *("_src/nn", "_src/numpy", "_src/scipy", "_src/image", "_src/random", "_src/cudnn"),
        *("nn", "numpy", "scipy", "random", "experimental"),
    )
)
# Where `a * b` and `jnp.multiply` lead: the user's own line says it better.
_OPERATORS = tuple(
    os.path.join("_src", "numpy", name)
    for name in ("array_methods", "ufunc", "tensor_contractions")
)
# Machinery that a user's word stands for: file and function of jax -> how to call it in `within`.
_TRANSFORMS = {
    ("custom_derivatives", "custom_vjp.__call__"): "custom_vjp",
    ("ad", "process_custom_vjp_call"): "custom_vjp",
}
# What of jax takes derivatives; `jax.grad` and the like call these.
# The methods that run when a module is called, whatever its library names them.
_CALLED = frozenset({"__call__", "call", "forward"})
_DECORATORS = 32  # lines of them, at most


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack.

    Attributes:
      code: the code object that runs in it.
      lasti: the offset of the instruction that it is at, in bytes.
      kind: `user`, `library` or `jax` (jax.nn, jax.numpy, ...).
    """

    code: CodeType
    lasti: int
    kind: str

    def __hash__(self) -> int:
        # Frames are looked up by the thousand, and the hash of a code object goes through it all.
        return self.code.co_firstlineno << 16 ^ self.lasti


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames of one eqn.

    Attributes:
      frames: the frames, outermost first; one object for all equal ones that a reader returns.
      rooted: whether the traceback reaches our own call of the target; if not, JAX cut the frames
        above the innermost traced function (0.7.1 and later) or cached another caller's.
      whole: whether the traceback is uncut: it is rooted or goes down to the interpreter's start.
      transforms: transforms seen only as JAX frames, outermost first.
    """

    frames: tuple[Frame, ...]
    rooted: bool
    whole: bool
    transforms: tuple[str, ...]


EMPTY = Stack((), False, False, ())


class Frames:
    """A reader of tracebacks.

    One instance per report: it caches by traceback, and a program of identical layers has few
    distinct ones.

    Args:
      own: directories that count as the user's code wherever they are.
      cwd: the directory that files are shown relative to; None: the current one.
    """

    def __init__(self, own: Iterable[str] = (), cwd: str | None = None) -> None:
        self.own = tuple(os.path.join(os.path.abspath(path), "") for path in own)
        self.cwd = os.path.join(cwd or os.getcwd(), "")
        self.stack = functools.cache(self._stack)
        self._shared: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}
        self.kind = functools.cache(self._kind)
        self.location = functools.cache(self._location)

    def of(self, eqn: Eqn) -> Stack:
        """Return the stack of an eqn, as JAX recorded it."""
        tb = jax_compat.traceback(eqn)
        return EMPTY if tb is None else self.stack(tb)

    def innermost_user(self, frames: Iterable[Frame]) -> Location | None:
        """Return the location of the innermost frame of the user's own code.

        Without one, that of the innermost library frame, else of the innermost frame of jax.nn,
        jax.numpy and the like; None if there is none of these either.
        """
        ordered = list(frames)[::-1]
        for kind in ("user", "library", "jax"):
            for frame in ordered:
                if frame.kind == kind:
                    return self.location(frame)
        return None

    def library_calls(self, frames: Iterable[Frame]) -> tuple[Location | None, Location | None]:
        """Return what the user's innermost line called.

        Returns:
          the innermost frame of a library below that line, or the outermost of jax.nn, jax.numpy
          and the like; and the innermost frame of another library that called that one. None for
          each that there is not.
        """
        below = list(itertools.takewhile(lambda f: f.kind != "user", list(frames)[::-1]))
        library = [frame for frame in below if frame.kind == "library"]
        if not library:
            return (self.location(below[-1]) if below else None), None
        package = _package(library[0])
        others = (f for f in library if _package(f) != package and not is_wrapper(f.code))
        caller = next(others, None)
        return self.location(library[0]), None if caller is None else self.location(caller)

    def _stack(self, tb: Any) -> Stack:
        codes, lastis = tb.raw_frames()
        frames: list[Frame] = []
        transforms: list[str] = []
        rooted = False
        for code, lasti in zip(codes, lastis, strict=True):
            kind = self.kind(code.co_filename, code.co_qualname)
            if kind == "root":
                rooted = True
                break
            if kind.startswith("transform "):
                transforms.append(kind.removeprefix("transform "))
            elif kind != "machinery":
                frames.append(Frame(code, lasti, kind))
        # An uncut traceback goes down to the interpreter's start.
        whole = rooted or (bool(codes) and codes[-1].co_name == "<module>")
        made = tuple(reversed(frames))
        return Stack(
            self._shared.setdefault(made, made),
            rooted,
            whole,
            tuple(dict.fromkeys(reversed(transforms))),
        )

    def _kind(self, file: str, function: str) -> str:
        if file.startswith(FOLDER):
            if file == _LOSSES:
                return "machinery" if function.startswith("_") else "library"
            return "root" if file in _ROOTS else "machinery"
        if file.startswith(_jax_roots()):
            stem, last = os.path.basename(file)[:-3], function.rsplit(".", 1)[-1]
            transform = _TRANSFORMS.get((stem, function)) or _TRANSFORMS.get((stem, last))
            if transform:
                return f"transform {transform}"
            tail = file.removeprefix(_jax_roots()[0])
            is_library = tail.startswith(_JAX_LIBRARY) and not tail.startswith(_OPERATORS)
            return "jax" if is_library else "machinery"
        if file.startswith(self.own):
            return "user"
        if file.startswith(_site_roots()) or f"{os.sep}site-packages{os.sep}" in file:
            return "library"
        if file.startswith(_stdlib_roots()) or file.startswith("<frozen"):
            return "machinery"
        return "user"

    def span(self, frame: Frame) -> tuple[int, int, int, int] | None:
        """Return row, column, end row and end column of the code that a frame was at.

        Rows are 1-based, columns 0-based in code points. None where Python was told to forget them.
        """
        row, end_row, column, end_column = _span(frame)
        if row is None or end_row is None or column is None or end_column is None:
            return None
        file = frame.code.co_filename
        return (
            row,
            characters(linecache.getline(file, row), column),
            end_row,
            characters(linecache.getline(file, end_row), end_column),
        )

    def _location(self, frame: Frame) -> Location:
        line, column = _position(frame.code, frame.lasti)
        file = frame.code.co_filename
        text = linecache.getline(file, line)
        if file == _LOSSES:
            name = frame.code.co_qualname.partition(".")[0].replace("_", "-")
            return Location.of_loss(name, line, text.strip())
        if column is not None:
            column = characters(text, column)
        return Location(
            file=cell_name(file) or file.removeprefix(self.cwd),
            line=line,
            column=column,
            function=frame.code.co_qualname.replace(".<locals>", ""),
            code=text.strip(),
        )


def is_module_method(frame: Frame) -> bool:
    """Return whether a frame is that of a method of a module: the user's, or a library's layer.

    What a decorator puts around a method is not one.
    """
    code = frame.code
    owner = code.co_qualname.rpartition(".")[0].rpartition(".")[2]
    return (
        code.co_varnames[:1] == ("self",)
        and owner not in ("", "<locals>")
        and (frame.kind == "user" or f"{os.sep}nn{os.sep}" in code.co_filename)
    )


def is_wrapper(code: CodeType) -> bool:
    """Return whether a function looks like those that libraries put around somebody else's.

    Such a function is private, made inside another one, or takes whatever it is given.
    """
    owner, _, name = code.co_qualname.rpartition(".")
    owner = owner.rpartition(".")[2]
    is_called = name.startswith("__") and name.endswith("__")
    if owner == "<locals>" or name.startswith("<"):
        return True
    if owner.startswith("_") or (name.startswith("_") and not is_called):
        return True
    many = bool(code.co_flags & inspect.CO_VARARGS), bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return all(many) if is_called else any(many)


def passes_on(code: CodeType) -> bool:
    """Return whether a user's function may do no more than call another.

    That is a lambda, or a function that takes whatever it is given.
    """
    return code.co_name.startswith("<") or bool(
        code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    )


def calls_wrapped(frame: Frame) -> bool:
    """Return whether a frame calls a function that one around it was given.

    What a decorator puts around a function calls that so.
    """
    row, end_row, column, end_column = _span(frame)
    return (row, column, end_row, end_column) in _calls_of_wrapped(frame.code.co_filename)


@functools.lru_cache(maxsize=64)
def _calls_of_wrapped(file: str) -> frozenset[tuple[int | None, ...]]:
    """Return where functions of a file call what a function around them was given.

    A call is row, column, end row and end column, as Python counts them.
    """
    found: set[tuple[int | None, ...]] = set()
    module = _parsed(file)
    todo: list[tuple[ast.AST, frozenset[str], frozenset[str]]] = []
    if module is not None:
        todo.append((module, frozenset(), frozenset()))
    while todo:
        node, own, around = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            own, around = frozenset(arg.arg for arg in _arguments(node.args)), own | around
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in around - own
        ):
            found.add((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset))
        todo += [(child, own, around) for child in ast.iter_child_nodes(node)]
    return frozenset(found)


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def name_of(code: CodeType) -> str:
    """Return what a user calls a function.

    That is a module's class where the function is what calling the module runs (`Block`), else
    `layer` or `Block.attend`.
    """
    return name_of_qualified(code.co_qualname)


def name_of_qualified(qualname: str) -> str:
    """Return what `name_of` does for a function of which only the qualified name is known."""
    owner, _, name = qualname.rpartition(".")
    owner = owner.rpartition(".")[2]
    if not owner or owner == "<locals>":
        return name
    return owner if name in _CALLED else f"{owner}.{name}"


def qualified_name(file: str, line: int, name: str) -> str:
    """Return the qualified name of the function `name` that begins at a line: `Dense.call`.

    It is read from the source: JAX says of what it traced only the name, the file and the first
    line. The name itself where the source does not show the function.
    """
    return _definitions(file).get((line, name), name)


@functools.lru_cache(maxsize=64)
def _definitions(file: str) -> Mapping[tuple[int, str], str]:
    """Return the qualified names of a file's functions by first line (a decorator's) and name."""
    module = _parsed(file)
    if module is None:
        return {}
    found: dict[tuple[int, str], str] = {}
    todo: list[tuple[ast.AST, str]] = [(module, "")]
    while todo:
        node, prefix = todo.pop()
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.ClassDef):
                inner = f"{prefix}{child.name}."
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min((child.lineno, *(d.lineno for d in child.decorator_list)))
                found[first, child.name] = prefix + child.name
                inner = f"{prefix}{child.name}.<locals>."
            todo.append((child, inner))
    return found


def _parsed(file: str) -> ast.Module | None:
    """Return the syntax tree of a source file; None where it cannot be had."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def is_jax(code: CodeType) -> bool:
    """Return whether code is JAX's."""
    return code.co_filename.startswith(_jax_roots())


def is_adapter(code: CodeType) -> bool:
    """Return whether code is ours that stands for a framework's training code."""
    return code.co_filename.startswith(_ADAPTERS)


def definition(code: CodeType, frames: Frames) -> Location:
    """Return where a function is defined, below its decorators."""
    file, first = code.co_filename, code.co_firstlineno
    header = re.compile(rf"\s*(async\s+)?def\s+{re.escape(code.co_name)}\b")
    rows = range(first, first + _DECORATORS)
    line = next((row for row in rows if header.match(linecache.getline(file, row))), first)
    return Location(
        file=file.removeprefix(frames.cwd),
        line=line,
        column=None,
        function=code.co_qualname.replace(".<locals>", ""),
        code=linecache.getline(file, line).strip(),
    )


def _package(frame: Frame) -> str:
    """Return the path of the top folder (or module) that a library's frame is in."""
    file = frame.code.co_filename
    for folder in ("site-packages", "dist-packages"):
        before, found, after = file.rpartition(f"{os.sep}{folder}{os.sep}")
        if found:
            return os.path.join(before, after.partition(os.sep)[0])
    return os.path.dirname(file)


def characters(text: str, column: int) -> int:
    """Convert a column from UTF-8 bytes, as CPython counts, to code points."""
    return len(text.encode()[:column].decode(errors="replace"))


def below(stack: Stack, above: tuple[Frame, ...], jaxpr: Jaxpr) -> tuple[Frame, ...]:
    """Return the frames of an eqn that lie below the call of the jaxpr that holds it.

    Where the stack is whole (JAX 0.7.0), it is ours or that of whoever called a cached function
    first.

    Args:
      stack: the stack of the eqn.
      above: the frames of the call itself, outermost first.
      jaxpr: the open jaxpr that holds the eqn.
    """
    if stack.whole and stack.frames[: len(above)] == above:
        return stack.frames[len(above) :]
    return inside(stack, jaxpr)


def inside(stack: Stack, jaxpr: Jaxpr) -> tuple[Frame, ...]:
    """Return the frames from the function on that was traced into `jaxpr`.

    A stack that JAX cut starts there; in a whole one (0.7.0) the function is looked up.
    """
    if not stack.whole:
        return stack.frames
    name, _, where = (jax_compat.traced_function(jaxpr) or "").partition(" at ")
    file, _, line = where.rpartition(":")
    for i, frame in enumerate(stack.frames):
        code = frame.code
        if (code.co_filename, str(code.co_firstlineno), code.co_name) == (file, line, name):
            return stack.frames[i:]
    return stack.frames[-1:]


def from_exception(tb: TracebackType | None) -> list[tuple[CodeType, int]]:
    """Return the raw frames of a Python traceback, outermost first."""
    found = []
    while tb is not None:
        found.append((tb.tb_frame.f_code, tb.tb_lasti))
        tb = tb.tb_next
    return found


@functools.cache
def _positions(code: CodeType) -> tuple[tuple[int | None, ...], ...]:
    return tuple(code.co_positions())


def _span(frame: Frame) -> tuple[int | None, ...]:
    """Return row, end row, column and end column of what a frame was at, as Python counts them."""
    positions, at = _positions(frame.code), frame.lasti // 2
    return positions[at] if 0 <= at < len(positions) else (None,) * 4


def _position(code: CodeType, lasti: int) -> tuple[int, int | None]:
    positions = _positions(code)
    at = lasti // 2
    if 0 <= at < len(positions):
        line, _, column, _ = positions[at]
        if line is not None:
            return line, column
    return code.co_firstlineno, None


@functools.cache
def _jax_roots() -> tuple[str, ...]:
    jax = jax_compat.import_jax()
    import jaxlib

    return tuple(
        os.path.join(os.path.dirname(os.path.abspath(str(module.__file__))), "")
        for module in (jax, jaxlib)
    )


@functools.cache
def _site_roots() -> tuple[str, ...]:
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    return _folders(paths)


@functools.cache
def _stdlib_roots() -> tuple[str, ...]:
    return _folders({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


def _folders(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths as code may name them, links followed or not."""
    return tuple({os.path.join(p, "") for path in paths for p in (path, os.path.realpath(path))})
