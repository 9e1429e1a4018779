"""Write a `fori_loop` as the scan that JAX makes of it, so that it can be cut into segments."""

from __future__ import annotations

import ast

from jaxresid.advice.plan.source.file_edits import FileRewrite, UnwritableError
from jaxresid.advice.plan.source.new_names import names_used, unused
from jaxresid.base.violations import Edit, Span
from jaxresid.linter.fixes import edits
from jaxresid.linter.resolve.sites import Loop

QUALNAME = "jax.lax.fori_loop"
_ARGUMENTS = ("lower", "upper", "body_fun", "init_val")


def as_scan(file: FileRewrite, loop: Loop, length: int) -> None:
    """Put a scan of a function of the number and the state in the place of a `fori_loop`.

    Its statement has to be one that others can be put before.

    Args:
      file: The file.
      loop: The loop.
      length: How many iterations it has.

    Raises:
      UnwritableError: Not all of its arguments are visible.
    """
    call = loop.node
    assert isinstance(call, ast.Call)
    given = dict(zip(_ARGUMENTS, call.args, strict=False))
    given |= {k.arg: k.value for k in call.keywords if k.arg}
    is_spread = any(isinstance(a, ast.Starred) for a in call.args)
    if is_spread or not given.keys() >= set(_ARGUMENTS):
        raise UnwritableError(
            file.where(call.lineno), "not all arguments of this loop are visible; cut it by hand"
        )
    source, statement = file.source, file.facts.names.statement(call)
    used = names_used(file, call)
    lines = []
    body = file.text(given["body_fun"])
    if not isinstance(given["body_fun"], ast.Name | ast.Attribute):
        name = unused("body", used)
        lines += [f"{name} = {body}", ""]
        body = name
    number = next((n for n in ("i", "n") if n not in used), "number")
    iteration, number, state = (unused(n, used) for n in ("iteration", number, "state"))
    lines += [
        f"def {iteration}(carry, _):",
        f"    {number}, {state} = carry",
        f"    return ({number} + 1, {body}({number}, {state})), None",
        "",
    ]
    indent, newline = file.indent(statement.lineno), file.newline
    before = source.lines[statement.lineno - 2].strip() if statement.lineno > 1 else ""
    if before and not before.endswith(":"):
        lines.insert(0, "")
    text = "".join(f"{indent}{line}{newline}" if line else newline for line in lines)
    scan = file.spelling("jax.lax.scan", "jax", call)
    more = "".join(
        f", {name}={file.text(node)}" for name, node in given.items() if name not in _ARGUMENTS
    )
    start, init = file.text(given["lower"]), file.text(given["init_val"])
    run = f"{scan}({iteration}, ({start}, {init}), None, length={length}{more})[0][1]"
    file.edit(edits.replace(source, call, run))
    row = statement.lineno
    file.edit(Edit(Span(row, 0, row, 0), text))
