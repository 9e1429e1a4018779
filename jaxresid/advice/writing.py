"""A plan -> the edit of the user's source: shown as a diff, or written, all of it or nothing."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxresid.advice.checkpoint_edits import remove_checkpoint, set_policy, written_checkpoint
from jaxresid.advice.new_checkpoints import (
    checkpoint_body,
    checkpoint_call,
    checkpoint_whole,
    defined_at,
)
from jaxresid.advice.placing import definition
from jaxresid.advice.rewriting import Rewriting, Rewritings, UnwritableError
from jaxresid.advice.snippets import code, merged, treatment
from jaxresid.errors import InputsError, JaxresidError
from jaxresid.inspector import Subject
from jaxresid.linter.diffing import unified_diff
from jaxresid.linter.facts import Site
from jaxresid.linter.writing import replace_content
from jaxresid.model import Expression, Plan, PlannedSite, PlannedValue
from jaxresid.violations import Span


@dataclass(frozen=True, slots=True)
class FileEdit:
    """A file before and after. `shown` is its path relative to the working directory where it is
    below it."""

    path: Path
    shown: str
    old: bytes
    new: bytes


def edits(plan: Plan, subject: Subject) -> tuple[FileEdit, ...]:
    """What a plan changes in the user's source.

    Args:
      subject: what was planned for.

    Returns:
      the files that change, by name; none where the code is as planned already.

    Raises:
      InputsError: something cannot be written; a line for each, with what to do by hand.
    """
    files = Rewritings(subject.frames)
    problems: list[str] = []
    checkpoints: dict[int, tuple[Rewriting, Site, list[PlannedSite]]] = {}
    for site in plan.sites:
        try:
            if site.kind == "checkpoint":
                _gather(files, site, checkpoints)
            elif site.changed:
                _make(files, site, subject.fun)
        except UnwritableError as e:
            problems.append(str(e))
    for file, written, planned in checkpoints.values():
        try:
            _change(file, written, planned)
        except UnwritableError as e:
            problems.append(str(e))
    for expression, name in _names(plan, problems):
        try:
            _name(files, expression, name)
        except UnwritableError as e:
            problems.append(str(e))
    made = []
    for file in files.changed():
        try:
            made.append(FileEdit(file.path, file.shown, file.old, file.new()))
        except UnwritableError as e:
            problems.append(str(e))
    if problems:
        raise InputsError("\n  ".join(["the plan cannot be written:", *dict.fromkeys(problems)]))
    return tuple(sorted((e for e in made if e.new != e.old), key=lambda e: e.shown))


def diff(edits: Sequence[FileEdit]) -> str:
    """The edits as a unified diff, as `git apply` takes it in the working directory."""
    return "".join(
        line
        for edit in edits
        for line in unified_diff(edit.old, edit.new, f"a/{edit.shown}", f"b/{edit.shown}")
    )


def write(edits: Sequence[FileEdit]) -> None:
    """Writes all files, or none.

    Raises:
      JaxresidError: one cannot be written, or has changed since it was read.
    """
    done: list[FileEdit] = []
    try:
        for edit in edits:
            try:
                if not replace_content(edit.path, edit.old, edit.new):
                    raise JaxresidError(
                        f"{edit.shown} changed while it was planned; nothing is written, run again"
                    )
            except OSError as e:
                raise JaxresidError(
                    f"cannot write {edit.shown}: {e.strerror or e}; nothing is written"
                ) from e
            done.append(edit)
    except BaseException:
        for edit in reversed(done):
            with contextlib.suppress(OSError):
                replace_content(edit.path, edit.new, edit.old)
        raise


# -- sites -----------------------------------------------------------------------------------------


def _gather(
    files: Rewritings,
    site: PlannedSite,
    checkpoints: dict[int, tuple[Rewriting, Site, list[PlannedSite]]],
) -> None:
    """Puts a planned checkpoint to those that are one in source. What stays as it is matters where
    another that is the same in source does not."""
    try:
        file, written = written_checkpoint(files, site.function, site.location)
    except UnwritableError:
        if site.changed:
            raise
        return
    checkpoints.setdefault(id(written.node), (file, written, []))[2].append(site)


def _change(file: Rewriting, written: Site, planned: Sequence[PlannedSite]) -> None:
    if not any(site.changed for site in planned):
        return
    wanted = {_treatment(site) for site in planned}
    if len(wanted) > 1:
        where = ", ".join(_where(site) for site in planned)
        raise UnwritableError(
            file.where(written.node.lineno),
            f"this checkpoint is that of several calls, which are planned differently ({where});"
            " give each its own by hand",
        )
    checkpointed, policy = wanted.pop()
    if checkpointed:
        set_policy(file, written, policy)
    else:
        remove_checkpoint(file, written)


def _make(files: Rewritings, site: PlannedSite, fun: Callable[..., Any]) -> None:
    """Writes a checkpoint that is not there yet."""
    checkpointed, policy = _treatment(site)
    if not checkpointed:
        return
    if site.kind == "whole":
        location = definition(fun)
        if location is None:
            raise UnwritableError(site.function, "the target is no Python function")
        file = files.at(location.file, location.line)
        found = defined_at(file.facts, location)
        checkpoint_whole(file, found if isinstance(found, ast.stmt) else None, policy)
        return
    if site.location is None:
        raise UnwritableError(site.function, "no line is known where it is called")
    make = checkpoint_body if site.kind == "scan" else checkpoint_call
    make(files, site.function, site.location, policy)


def _treatment(site: PlannedSite) -> tuple[bool, str | None]:
    """What becomes of a place's calls.

    Raises:
      UnwritableError: not the same of all.
    """
    parts = merged(site.parts)
    if len(parts) > 1:
        raise UnwritableError(
            _where(site),
            f"some calls of {site.function} are planned otherwise than others; by hand:"
            f" {code(site)}",
        )
    return treatment(parts[0])


def _where(site: PlannedSite) -> str:
    return f"{site.location.file}:{site.location.line}" if site.location else site.function


# -- names -----------------------------------------------------------------------------------------


def _names(plan: Plan, problems: list[str]) -> tuple[tuple[Expression, str], ...]:
    """The expressions to name. One that would get two names is a problem."""
    found: dict[Expression, str] = {}
    for value in _values(plan):
        if value.expression is None:
            continue
        known = found.setdefault(value.expression, value.name)
        if known != value.name:
            where = f"{value.expression.file}:{value.expression.line}"
            problems.append(
                f"{where}: {value.expression.code} would need two names, {known} and {value.name};"
                " name it by hand"
            )
    return tuple(found.items())


def _values(plan: Plan) -> list[PlannedValue]:
    return [v for site in plan.sites if site.changed for part in site.parts for v in part.values]


def _name(files: Rewritings, expression: Expression, name: str) -> None:
    """Wraps an expression in `checkpoint_name`."""
    file = files.at(expression.file, expression.line)
    node = _expression(file, expression)
    if isinstance(node, ast.NamedExpr):
        node = node.value
    spelled = file.spelled(
        "jax.ad_checkpoint.checkpoint_name", "jax.ad_checkpoint.checkpoint_name", node
    )
    # Inside a call's brackets a tuple without its own would be several arguments.
    needs = isinstance(node, (ast.Tuple, ast.Yield, ast.YieldFrom))
    opening, closing = ("(", ")") if needs else ("", "")
    file.wrap(node, f"{spelled}({opening}", f"{closing}, {file.string(name)})")


def _expression(file: Rewriting, expression: Expression) -> ast.expr:
    span = Span(expression.line, expression.column, expression.end_line, expression.end_column)
    for node in ast.walk(file.facts.names.tree):
        if (
            isinstance(node, ast.expr)
            and node.lineno == span.row
            and not isinstance(node, (ast.GeneratorExp, ast.Starred))
            and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            and file.source.span(node) == span
        ):
            return node
    raise UnwritableError(
        file.where(expression.line),
        f"`{expression.code}` is not there as an expression of its own; name it by hand",
    )


__all__ = ["FileEdit", "code", "diff", "edits", "write"]
