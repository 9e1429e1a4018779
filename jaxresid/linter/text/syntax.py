"""Parse source text to `ast`, including grammar that is newer than the Python that runs.

`ast.parse` knows the running Python's grammar only. Where it refuses, libcst, which knows newer
ones, parses the text; what is new is then blanked out in place (same rows, same columns for
everything else), and `ast` parses the rest. What the linter looks at survives: none of the new
constructs can contain a checkpoint but an f-string, whose expressions are lost.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING

from jaxresid.linter.text.time_limit import in_child

if TYPE_CHECKING:
    import libcst as cst

    from jaxresid.linter.text.source import SourceText


_NESTING = re.compile(r"\b(?:elif|if|not|await|lambda|or|and|is|in)\b|[^\s\w]|\n")
_MAX_BRACKETS = 200  # CPython's own limit
_MAX_OPERATORS = 1500


class UnparsableError(ValueError):
    """The error of text that neither parser accepts.

    Attributes:
      row: the 1-based row.
      column: the 0-based column, in code points.
    """

    def __init__(self, reason: str, row: int, column: int) -> None:
        self.row, self.column = row, column
        super().__init__(reason)


def parse(source: SourceText, *, top_level_await: bool = False) -> ast.Module:
    """Return the tree of a module.

    Raises:
      UnparsableError: No Python that we know of accepts it.
    """
    try:
        return _parse(source.text, top_level_await)
    except SyntaxError as e:
        row, column = max(e.lineno or 1, 1), max((e.offset or 1) - 1, 0)
        reason = str(e.msg)
    except (RecursionError, MemoryError):
        raise UnparsableError("too deeply nested for Python's parser", 1, 0) from None
    except ValueError as e:
        raise UnparsableError(str(e), 1, 0) from None
    # libcst's parser takes exponential time for some texts: brackets in a `case` are enough.
    text = in_child(_without_newer_grammar, source.text)
    if text is not None:
        try:
            return _parse(text, top_level_await)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    raise UnparsableError(reason, row, column)


def _parse(text: str, top_level_await: bool) -> ast.Module:
    flags = ast.PyCF_ONLY_AST | (ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if top_level_await else 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the linted code's invalid escapes are not our business
        tree = compile(text, "<linted>", "exec", flags, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


def _without_newer_grammar(text: str) -> str | None:
    """Return `text` with constructs of newer Pythons blanked, None if there are none to blank."""
    if is_deep(text):
        return None
    import libcst as cst
    from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        spans = wrapper.resolve(ByteSpanPositionProvider)
    except Exception:  # libcst raises its own, RecursionError and, from Rust, others
        return None
    raw = bytearray(text.encode("utf-8"))
    changed = False
    todo: list[cst.CSTNode] = [wrapper.module]
    while todo:
        node = todo.pop()
        if node in spans:
            start = spans[node].start
            end = start + spans[node].length
            new = _blanked(node, bytes(raw[start:end]))
            if new is not None:
                raw[start:end] = new
                changed = True
                continue
        todo.extend(node.children)
    return raw.decode("utf-8", "replace") if changed else None


def is_deep(text: str) -> bool:
    """Return whether nesting could overflow the stack of libcst's parser, which ends the process.

    That takes 800 brackets or 3,200 operators. Strings and comments are counted too, at worst for a
    file whose newer grammar is then not understood.
    """
    operators = [0]
    branches = 0
    for match in _NESTING.finditer(text):
        token = match.group()
        if token in "([{":
            operators.append(0)
        elif token in ")]}":
            if len(operators) > 1:
                operators.pop()
            operators[-1] += 1
        elif token == "elif":
            branches += 1
        elif token in {",", ";"} or (token == "\n" and len(operators) == 1):
            operators[-1] = 0
        elif token != "\n":
            operators[-1] += 1
        if len(operators) > _MAX_BRACKETS or max(operators[-1], branches) > _MAX_OPERATORS:
            return True
    return False


def _blanked(node: cst.CSTNode, code: bytes) -> bytes | None:
    """Return a replacement of the same length for a construct that is new, None for all others."""
    import libcst as cst

    if isinstance(node, cst.TypeParameters):
        return _continued(code)
    if isinstance(node, cst.TypeAlias):
        # `type X = int` -> `0;   X = int`: an assignment, its columns kept.
        head = node.name.value.encode()
        value = code.index(b"=", len(b"type"))
        before = code[len(b"type") : value]
        kept = re.sub(rb"\[.*", lambda m: _continued(m.group()), before, flags=re.DOTALL)
        assert head in kept
        return b"0;  " + kept + code[value:]
    if isinstance(node, cst.FormattedString) or type(node).__name__ == "TemplatedString":
        # Nested quotes (3.12), template strings (3.14). A plain string of the same shape.
        body = re.sub(rb"[^\r\n]", b" ", code)
        if b"\n" in code or b"\r" in code:
            return b"'''" + body[3:-3] + b"'''" if len(code) >= len(b"''''''") else None
        return b"'" + body[1:-1] + b"'"
    if isinstance(node, cst.ExceptHandler) and isinstance(node.type, cst.Tuple):
        # `except A, B:` (3.14).
        match = re.match(rb"except\s+([\w.]+)(\s*,[^:(\[]*)(:)", code)
        if match:
            return code[: match.start(2)] + _spaces(match.group(2)) + code[match.start(3) :]
    if type(node).__name__ in {"Import", "ImportFrom"} and code.startswith(b"lazy "):
        return b"0;   " + code[len(b"lazy ") :]
    return None


def _continued(code: bytes) -> bytes:
    """Return spaces over the same lines: outside brackets one goes on after a backslash only."""
    return re.sub(rb" (?=\r?\n)", rb"\\", _spaces(code))


def _spaces(code: bytes) -> bytes:
    return re.sub(rb"[^\r\n]", b" ", code)
