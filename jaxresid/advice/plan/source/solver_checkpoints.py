"""Write how many carries a solver's loop keeps where the loop is called."""

from __future__ import annotations

import ast

from jaxresid.advice.plan.source.file_edits import FileRewrite, FileRewrites, UnwritableError
from jaxresid.advice.plan.source.locate import calls_at
from jaxresid.linter.fixes.edits import set_keyword
from jaxresid.linter.resolve.names import External
from jaxresid.results import PlannedSite

_KEYWORD = "checkpoints"
_ADJOINT = "RecursiveCheckpointAdjoint"
# Equinox' loops take the keyword themselves; the solvers of these libraries in an adjoint.
_LOOPS = ("while_loop", "scan")
_SOLVERS = ("diffrax", "optimistix")


def write_checkpoints(files: FileRewrites, site: PlannedSite) -> None:
    """Write the number of checkpoints of a solver's loop into the call that runs it.

    Args:
      files: The user's files.
      site: The loop, of one part.

    Raises:
      UnwritableError: The call is not there, or its number is not one that is written there.
    """
    count, location = site.parts[0].checkpoints, site.location
    if location is None:
        raise UnwritableError(site.function, "the line that runs the loop is not known")
    file = files.at(location.file, location.line)
    found = [
        (call, name)
        for call in calls_at(file, location)
        if (name := _name(file, call.func)) and _runs_loop(name)
    ]
    if len(found) != 1:
        what = "several calls run" if found else "no call that is seen here runs"
        raise UnwritableError(
            file.where(location.line),
            f"{what} a loop with checkpoints; by hand: {_KEYWORD}={count}",
        )
    ((call, name),) = found
    if _is_of_equinox(name):
        _write(file, call, call, count)
        return
    library = name.partition(".")[0]
    adjoint = _keyword(file, call, "adjoint", count)
    if adjoint is None:
        spelled = file.spelling(f"{library}.{_ADJOINT}", library, call)
        _set(file, call, "adjoint", f"{spelled}({_KEYWORD}={count})", count)
        return
    made = [o for o in file.facts.names.origins(adjoint) if isinstance(o, ast.Call)]
    if len(made) == len(file.facts.names.origins(adjoint)) == 1:
        (origin,) = made
        if (_name(file, origin.func) or "").rpartition(".")[2] == _ADJOINT:
            _write(file, origin, call, count)
            return
    raise _by_hand(file, call, f"adjoint={file.text(adjoint)}", count)


def _write(file: FileRewrite, made: ast.Call, call: ast.Call, count: int | None) -> None:
    """Write the number into the call that takes it; `call` is the one that runs the loop."""
    written = _keyword(file, made, _KEYWORD, count)
    if made is not call and written is None and made.args:
        (first, *_) = made.args  # of an adjoint it is the first argument
        if isinstance(first, ast.Starred):
            raise _by_hand(file, made, file.text(made), count)
        written = first
    if written is None:
        _set(file, made, _KEYWORD, str(count), count)
    elif isinstance(written, ast.Constant):
        file.replace(written, str(count))
    else:
        raise _by_hand(file, made, f"{_KEYWORD}={file.text(written)}", count)


def _keyword(file: FileRewrite, call: ast.Call, name: str, count: int | None) -> ast.expr | None:
    """Return the value of a keyword; None where it is not given.

    Raises:
      UnwritableError: It may be among those that `**` unpacks.
    """
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    unpacked = next((k.value for k in call.keywords if k.arg is None), None)
    if unpacked is not None:
        raise _by_hand(file, call, f"**{file.text(unpacked)}", count)
    return None


def _set(file: FileRewrite, call: ast.Call, name: str, value: str, count: int | None) -> None:
    edit = set_keyword(file.source, call, name, value)
    if edit is None:
        raise _by_hand(file, call, "the call", count)
    file.edit(edit)


def _by_hand(file: FileRewrite, at: ast.expr, written: str, count: int | None) -> UnwritableError:
    return UnwritableError(
        file.where(at.lineno),
        f"`{written}` is no number of checkpoints that is written here, which alone is edited; by"
        f" hand: {_KEYWORD}={count}",
    )


def _name(file: FileRewrite, node: ast.expr) -> str | None:
    """Return the full name of something of another module; None where that is not certain."""
    origins = file.facts.names.origins(node)
    if len(origins) == 1 and isinstance(origins[0], External):
        return origins[0].qualname
    return None


def _is_of_equinox(name: str) -> bool:
    library, _, rest = name.partition(".")
    return library == "equinox" and rest.rpartition(".")[2] in _LOOPS


def _runs_loop(name: str) -> bool:
    library, _, rest = name.partition(".")
    if library in _SOLVERS:
        return rest.rpartition(".")[2][:1].islower()
    return _is_of_equinox(name)
