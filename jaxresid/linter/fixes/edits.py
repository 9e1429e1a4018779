"""Edit source text, changing only the expression concerned.

The expression's own text is parsed by libcst, changed, and written back, so that comments, quotes
and line breaks inside it stay. Only what changes becomes part of the edit.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from jaxresid.violations import Edit, Fix, Span

if TYPE_CHECKING:
    import libcst as cst

    from jaxresid.linter.resolve.facts import Facts
    from jaxresid.linter.text.source import SourceText


def replace(source: SourceText, node: ast.expr | ast.stmt, text: str) -> Edit:
    """Return the edit that replaces a node by `text`."""
    return Edit(source.span(node), text)


def bind_result(facts: Facts, node: ast.expr, target: ast.expr) -> Fix:
    """Return the fix that binds a discarded value to the name it should have.

    Args:
      facts: the facts of the module.
      node: the expression whose value is discarded.
      target: the expression to assign it to.
    """
    span = facts.source.span(node)
    name = ast.unparse(target)
    at = Span(span.row, span.column, span.row, span.column)
    return Fix(f"Assign the result to `{name}`", (Edit(at, f"{name} = "),), "unsafe")


def change_call(
    source: SourceText, call: ast.Call, change: Callable[[cst.Call], cst.Call | None]
) -> Edit | None:
    """Return the edit that rewrites a call by libcst.

    None is returned where `change` declines or the text of the call does not parse alone.

    Args:
      source: the source of the module.
      call: the call.
      change: returns the rewritten call, or None to decline.
    """
    import libcst as cst

    from jaxresid.linter.text.syntax import is_deep

    span = source.span(call)
    text = source.segment(span)
    if is_deep(text):
        return None
    try:
        # In parentheses, because a call may go on over lines that only outer brackets allow.
        parsed = cst.parse_expression(f"({text}\n)")
    except Exception:  # its own errors and, from Rust, others; the finding stands without a fix
        return None
    if not isinstance(parsed, cst.Call):
        return None
    bare = parsed.with_changes(lpar=parsed.lpar[1:], rpar=parsed.rpar[:-1])
    changed = change(bare)
    if changed is None:
        return None
    return _minimal(source, Edit(span, cst.Module(body=[]).code_for_node(changed)))


def _minimal(source: SourceText, edit: Edit) -> Edit:
    """Return the same edit without the text at its ends that does not change."""
    start, end = source.start(edit.span), source.end(edit.span)
    old, new = source.text[start:end], edit.text
    # commonprefix goes by character, which is what is wanted here.
    same = len(os.path.commonprefix([old, new]))  # noqa: RUF071
    old, new = old[same:], new[same:]
    tail = len(os.path.commonprefix([old[::-1], new[::-1]]))  # noqa: RUF071
    return Edit(source.between(start + same, end - tail), new[: len(new) - tail])


def set_keyword(source: SourceText, call: ast.Call, name: str, value: str) -> Edit | None:
    """Return the edit that gives a keyword of a call a value.

    The keyword is added at the end where it is missing.

    Args:
      source: the source of the module.
      call: the call.
      name: the keyword.
      value: the source text of the value.
    """
    import libcst as cst

    for keyword in call.keywords:
        if keyword.arg == name:
            return Edit(source.span(keyword.value), value)

    def change(node: cst.Call) -> cst.Call:
        args = list(node.args)
        new = cst.Arg(
            cst.parse_expression(value),
            keyword=cst.Name(name),
            equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        )
        if args:
            last = args[-1]
            if isinstance(last.comma, cst.Comma):
                new = new.with_changes(comma=last.comma)
                trailing = last.comma.whitespace_after
                if isinstance(trailing, cst.ParenthesizedWhitespace) and len(args) > 1:
                    previous = args[-2].comma
                    if isinstance(previous, cst.Comma):
                        args[-1] = last.with_changes(comma=previous)
                    else:
                        args[-1] = last.with_changes(comma=_comma())
                else:
                    args[-1] = last.with_changes(comma=_comma())
            else:
                new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
                args[-1] = last.with_changes(
                    comma=_comma(), whitespace_after_arg=cst.SimpleWhitespace("")
                )
        return node.with_changes(args=[*args, new])

    return change_call(source, call, change)


def _comma() -> cst.Comma:
    import libcst as cst

    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def remove_argument(source: SourceText, call: ast.Call, argument: ast.expr) -> Edit | None:
    """Return the edit that removes one argument from a call.

    Args:
      source: the source of the module.
      call: the call.
      argument: the value of the argument, positional or by keyword.
    """
    return remove_arguments(source, call, (argument,))


def remove_arguments(
    source: SourceText, call: ast.Call, arguments: Iterable[ast.expr]
) -> Edit | None:
    """Return the edit that removes some arguments from a call.

    Args:
      source: the source of the module.
      call: the call.
      arguments: the values of the arguments, positional or by keyword.
    """
    removed = {id(a) for a in arguments}
    values = [a.value if isinstance(a, ast.keyword) else a for a in sorted_arguments(call)]
    indices = [i for i, value in enumerate(values) if id(value) in removed]
    if len(indices) != len(removed):
        return None

    def change(node: cst.Call) -> cst.Call:
        args = list(node.args)
        for index in reversed(indices):
            gone = args.pop(index)
            if args and index == len(args):
                last = args[-1]
                args[-1] = last.with_changes(
                    comma=gone.comma, whitespace_after_arg=gone.whitespace_after_arg
                )
        return node.with_changes(args=args)

    return change_call(source, call, change)


def sorted_arguments(call: ast.Call) -> list[ast.expr | ast.keyword]:
    """Return a call's positional and keyword arguments in source order."""
    found: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    return sorted(found, key=lambda a: (a.lineno, a.col_offset))


def add_import(facts: Facts, module: str, name: str | None = None) -> Edit:
    """Return the edit that adds an import after those at the top of the module.

    The import is `from module import name`, or `import module` where there is no name.
    """
    statement = f"from {module} import {name}" if name else f"import {module}"
    tree = facts.names.tree
    lines = facts.source.lines
    # After a `#!`, an encoding, a licence: the first two mean nothing on any other line.
    row = 1 + next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    for node in tree.body:
        is_docstring = (
            node is tree.body[0]
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if is_docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            row = (node.end_lineno or node.lineno) + 1
        else:
            break
    else:
        row = len(lines) + 1
    newline = "\r\n" if "\r\n" in facts.source.text else "\n"
    lead = "" if row <= len(lines) or facts.source.text.endswith("\n") else newline
    return Edit(Span(row, 0, row, 0), f"{lead}{statement}{newline}")


def name_for(facts: Facts, qualname: str) -> str | None:
    """Return how the module already spells something of another module.

    None is returned where it does not import what it needs.
    """
    for binding_list in facts.names.root.bindings.values():
        for binding in binding_list:
            if binding.kind != "import":
                continue
            if binding.qualname == qualname:
                return binding.name
            if qualname.startswith(f"{binding.qualname}."):
                return binding.name + qualname[len(binding.qualname) :]
    return None
