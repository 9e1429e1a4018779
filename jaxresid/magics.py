"""The magics of `%load_ext jaxresid`: `%residuals` and `%%residuals`.

IPython is there when this is imported, and is no dependency.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import click

from jaxresid.base.errors import JaxresidError
from jaxresid.base.option_types import Mode
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.base.text.safe_text import visible
from jaxresid.cli.options.places import place_options
from jaxresid.results import Report

_USAGE = "%residuals loss(params, batch), or %residuals loss params batch"
_LAST = (
    "the last line of the cell is to be a call, such as loss(params, batch): it is reported on, and"
    " not run"
)


def define(shell: Any) -> None:
    """Define the magics in a shell of IPython."""

    def residuals(line: str, cell: str | None = None) -> Report | None:
        from IPython.core.error import UsageError

        try:
            return _residuals(shell, line, cell)
        except (JaxresidError, _MagicError) as e:
            raise UsageError(_told(str(e))) from None
        except click.ClickException as e:
            raise UsageError(_told(e.format_message())) from None

    residuals.__doc__ = _DOC
    shell.register_magic_function(residuals, magic_kind="line_cell", magic_name="residuals")


_DOC = """Report what the backward pass of a call keeps and takes, without running it.

    %residuals loss(params, batch)
    %residuals loss params batch --on gpu:h100

    %%residuals --on tpu:v5e
    def loss(params, batch):
        ...
    loss(params, batch)

Names are those of the notebook. Arguments are arrays or jax.ShapeDtypeStructs. `%%residuals` runs
the cell up to its last line, and reports on that, which is a call. The report is the value of the
magic: `report = %residuals loss(params, batch)`.

Options, as those of `jaxresid report`:

    --on PLACE               what it is for: gpu:h100, tpu:v5e:2x4, cpu
    --mode MODE              auto, loss or program
    --argnums N,...          the positional arguments to differentiate
    --has-aux                the function returns (output, aux)
    --trips N                how often a loop runs whose number of trips the program decides
    --compile                ask XLA as well
    --memory-fraction SHARE  how much of a GPU's memory JAX takes
    --margin SIZE            how much memory of each device to leave free
"""


def _told(message: str) -> str:
    """Return a message as one line, which is all that a notebook shows of an error."""
    return visible(f"%residuals: {' '.join(map(str.strip, message.splitlines()))}")


class _MagicError(Exception):
    """The line of a magic, or the cell under it, cannot be understood."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What is to be reported on.

    Attributes:
      fun: the function.
      args: its positional arguments.
      kwargs: its keyword arguments.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@place_options
@click.option("--mode", type=click.Choice(get_args(Mode)), default="auto")
@click.option("--argnums", metavar="N,...")
@click.option("--has-aux", is_flag=True)
@click.option("--trips", type=click.IntRange(min=1))
@click.option("--compile", is_flag=True)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def _options(**given: Any) -> dict[str, Any]:
    return given


def _residuals(shell: Any, line: str, cell: str | None) -> Report | None:
    """Return the report; None where the cell fails, which the shell has told then.

    Raises:
      JaxresidError: something is wrong with the function or its arguments.
      click.ClickException: an option is wrong.
      _MagicError: no call is named.
    """
    given = _parsed(line)
    words = given.pop("words")
    if cell is None:
        if not words:
            raise _MagicError(f"nothing to report on; write {_USAGE}")
        return _reported(_named(words, shell.user_ns), given)
    body, last = (cell, None) if words else _split(shell.transform_cell(cell))
    if not _run(shell, body):
        return None
    call = _named(words, shell.user_ns) if last is None else _called(last, shell.user_ns)
    return _reported(call, given)


def _run(shell: Any, body: str) -> bool:
    """Run a part of a cell under the cell's number, and return whether it succeeds."""
    # The magic is the first line of the cell; IPython drops empty ones.
    first = "" if body.startswith("%%") else "#\n"
    shell.execution_count -= 1  # it is the next cell's already
    try:
        return bool(shell.run_cell(f"{first}{body}", store_history=False).success)
    finally:
        shell.execution_count += 1


def _parsed(line: str) -> dict[str, Any]:
    """Return the options of a line by name, and its other words.

    Raises:
      click.ClickException: an option is wrong.
      _MagicError: there is no such option.
    """
    given: dict[str, Any] = _options.main(
        line.split(), standalone_mode=False, prog_name="%residuals"
    )
    known = [name for option in _options.params for name in option.opts if name[:2] == "--"]
    for word in given["words"]:
        name = word.partition("=")[0]
        if name.startswith("--") and name[2:3].isalpha():
            hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise _MagicError(f"there is no option {name}{hint}")
    return given


def _named(words: tuple[str, ...], names: dict[str, Any]) -> _Call:
    """Return the call that the words of a line name: `loss(params, batch)` or `loss params batch`.

    Raises:
      _MagicError: they name none.
    """
    whole = " ".join(words)
    tree = _expression(whole)
    if isinstance(tree, ast.Call):
        return _called(tree, names)
    if tree is not None and not isinstance(tree, ast.Tuple):
        return _Call(_function(tree, names), (), {})
    each = [_expression(word.rstrip(",")) for word in words]
    if len(words) < 2 or None in each:
        raise _MagicError(f"{whole} is no call; write {_USAGE}")
    fun, *args = (tree for tree in each if tree is not None)
    return _Call(_function(fun, names), tuple(_value(arg, names) for arg in args), {})


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _split(cell: str) -> tuple[str, ast.Call]:
    """Return a cell without its last line, and the call that this is.

    Raises:
      _MagicError: it is none.
    """
    try:
        tree = ast.parse(cell)
    except SyntaxError as e:
        raise _MagicError(f"the cell is not valid Python: {e.msg} (line {e.lineno})") from None
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        raise _MagicError(_LAST)
    lines = cell.splitlines(keepends=True)
    before = "".join(lines[: last.lineno - 1])
    # What stands before it in the same line: `x = 1; loss(x)`.
    begun = lines[last.lineno - 1].encode()[: last.col_offset].decode().rstrip("; ")
    return before + begun, last.value


def _called(call: ast.Call, names: dict[str, Any]) -> _Call:
    """Return the function and the arguments of a call, evaluated.

    Raises:
      _MagicError: one of them cannot be.
    """
    fun = _function(call.func, names)
    taken = ast.Call(ast.Name("_taken_", ast.Load()), call.args, call.keywords)
    args, kwargs = _value(taken, {**names, "_taken_": lambda *args, **kwargs: (args, kwargs)})
    return _Call(fun, args, kwargs)


def _function(tree: ast.expr, names: dict[str, Any]) -> Callable[..., Any]:
    fun = _value(tree, names)
    if not callable(fun):
        raise _MagicError(f"{ast.unparse(tree)} is {type(fun).__name__}, and no function")
    return fun  # type: ignore[no-any-return]


def _value(tree: ast.expr, names: dict[str, Any]) -> Any:
    """Return the value of an expression in the notebook.

    Raises:
      _MagicError: it has none.
    """
    whole = ast.fix_missing_locations(ast.Expression(tree))
    try:
        return eval(compile(whole, "<%residuals>", "eval"), names)
    except NameError as e:
        known = [name for name in names if not name.startswith("_")]
        raise _MagicError(f"{e.name} is not defined{did_you_mean(e.name or '', known)}") from None
    except Exception as e:
        shown = ast.unparse(tree)
        what = shown.replace("_taken_", "one of ", 1) if shown.startswith("_taken_(") else shown
        raise _MagicError(f"{what} raises {type(e).__name__}: {e}") from None


def _reported(call: _Call, given: Mapping[str, Any]) -> Report:
    from jaxresid.advice.compile.report import inspect
    from jaxresid.inspector.memory.compilers import has_estimate
    from jaxresid.xla.chosen import choose

    *others, on = given["on"] or (None,)
    if others:
        raise _MagicError("--on is given more than once; a report is for one place")
    memory = {"memory_fraction": given["memory_fraction"], "margin_nbytes": given["margin"] or 0}
    place = choose(on, **memory)
    return inspect(
        call.fun,
        argnums=_numbers(given["argnums"]),
        has_aux=given["has_aux"],
        mode=given["mode"],
        on=place,
        trips=given["trips"],
        compile=given["compile"],
        lifetimes=has_estimate(place),
    )(*call.args, **call.kwargs)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise _MagicError(f"--argnums {text} is not a list of positions; write e.g. 0,2") from None
