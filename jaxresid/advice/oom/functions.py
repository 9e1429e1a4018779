"""Name the function that a log's traceback ends in as this machine has it."""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath

from jaxresid.advice.oom.buffers import is_source
from jaxresid.xla.logs.tracebacks import UserFunction

_DRIVE = re.compile(r"^[A-Za-z]:")


def named_function(function: UserFunction | None) -> str:
    """Return a function as a target, `src/train.py:train_step`; '' where it cannot be one.

    Its file is the one here whose path has most of the last parts of that in the log; where there
    is none, its name alone.
    """
    if function is None:
        return ""
    parts = PurePosixPath(_DRIVE.sub("", function.file).replace("\\", "/")).parts
    parts = tuple(part for part in parts if part not in ("/", ".", ".."))
    for i in range(len(parts)):
        file = "/".join(parts[i:])
        if is_source(file):
            return f"{file}:{function.name}" if _defines(Path(file), function.name) else ""
    return f"{parts[-1]}:{function.name}" if parts else ""


def _defines(file: Path, name: str) -> bool:
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    return any(name in _names(statement) for statement in body)


def _names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return set()
