"""Turn a plan into edits of the user's source: shown as a diff, or written, all or nothing."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxresid.advice.plan.source.call_numbers import Part
from jaxresid.advice.plan.source.existing import (
    remove_checkpoint,
    set_policy,
    split_checkpoint,
    written_checkpoint,
)
from jaxresid.advice.plan.source.file_edits import (
    FileEdit,
    FileRewrite,
    FileRewrites,
    UnwritableError,
)
from jaxresid.advice.plan.source.grouped import Groups, group_loops, loop_number
from jaxresid.advice.plan.source.libraries import by_hand
from jaxresid.advice.plan.source.nested import Segments, cut_by_hand, cut_scans, scan_number
from jaxresid.advice.plan.source.new import (
    checkpoint_body,
    checkpoint_call,
    checkpoint_whole,
    defined_at,
)
from jaxresid.advice.plan.source.observed_calls import ObservedCalls
from jaxresid.advice.plan.source.snippets import merged, treatment
from jaxresid.advice.plan.source.solver_checkpoints import write_checkpoints
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.base.violations import Span
from jaxresid.inspector.call.jitted_by import definition
from jaxresid.inspector.subject.base import Subject
from jaxresid.linter.resolve.facts import Site
from jaxresid.linter.run.atomic_write import replace_content
from jaxresid.linter.run.diffing import unified_diff
from jaxresid.results import Expression, Plan, PlannedSite, PlannedValue

# Writes a new checkpoint into the user's files, or raises `UnwritableError`.
WriteNew = Callable[[FileRewrites, PlannedSite, Subject, ObservedCalls], None]


@dataclass(frozen=True, slots=True)
class PlanEdits:
    """What a plan changes in the user's source.

    Attributes:
      edits: The files that change, by name; empty where the code is as planned already.
      problems: What cannot be written, a line each, with what to do by hand.
    """

    edits: tuple[FileEdit, ...]
    problems: tuple[str, ...] = ()


def edits(plan: Plan, subject: Subject) -> tuple[FileEdit, ...]:
    """Return what a plan changes in the user's source.

    Args:
      plan: The plan.
      subject: The traced function that it was made for.

    Returns:
      The files that change, by name; empty where the code is as planned already.

    Raises:
      InputsError: Something cannot be written; the message has a line for each, with what to do by
        hand.
    """
    found = plan_edits(plan.sites, subject)
    if found.problems:
        raise InputsError("\n  ".join(["the plan cannot be written:", *found.problems]))
    return found.edits


def plan_edits(
    sites: Sequence[PlannedSite],
    subject: Subject,
    seen: ObservedCalls | None = None,
    write_new: WriteNew | None = None,
) -> PlanEdits:
    """Return what a plan changes in the user's source, as far as it can be written.

    Args:
      sites: What the plan does at each place.
      subject: The traced function that it was made for.
      seen: What the functions to be checkpointed are called with; None means what the source tells.
      write_new: Writes a checkpoint that is not there yet; None: at its place, as `write_at_place`.
    """
    write = write_new or write_at_place
    files = FileRewrites(subject.frames)
    problems: list[str] = []
    checkpoints: dict[int, tuple[FileRewrite, Site, list[PlannedSite]]] = {}
    for site in sites:
        try:
            if site.kind == "checkpoint":
                _gather(files, site, checkpoints)
            elif site.kind == "solver":
                write_checkpoints(files, site)
            elif site.changed and site.kind not in ("segments", "groups"):
                write(files, site, subject, seen or ObservedCalls())
        except UnwritableError as e:
            problems.append(_problem(site, e))
    for file, checkpoint, planned in checkpoints.values():
        try:
            _change(files, file, checkpoint, planned)
        except UnwritableError as e:
            problems.append(str(e))
    for expression, name in _names(sites, problems):
        try:
            _name(files, expression, name)
        except UnwritableError as e:
            problems.append(str(e))
    loops = _loops(files, sites, problems)
    grouped = _grouped(files, sites, problems)
    made = []
    for file in dict.fromkeys([*files.changed(), *loops, *grouped]):
        try:
            new = cut_scans(files, file, file.new(), loops.get(file, ()))
            new = group_loops(files, file, new, grouped.get(file, ()))
            made.append(FileEdit(file.path, file.display_path, file.old, new))
        except UnwritableError as e:
            problems.append(str(e))
    changed = sorted((e for e in made if e.new != e.old), key=lambda e: e.display_path)
    return PlanEdits(tuple(changed), tuple(dict.fromkeys(problems)))


def diff(edits: Sequence[FileEdit]) -> str:
    """Return the edits as a unified diff, as `git apply` takes it in the working directory."""
    return "".join(
        line
        for edit in edits
        for line in unified_diff(
            edit.old, edit.new, f"a/{edit.display_path}", f"b/{edit.display_path}"
        )
    )


def write(edits: Sequence[FileEdit]) -> None:
    """Write all files, or none.

    Raises:
      JaxresidError: A file cannot be written, or has changed since it was read.
    """
    done: list[FileEdit] = []
    try:
        for edit in edits:
            try:
                if not replace_content(edit.path, edit.old, edit.new):
                    raise JaxresidError(
                        f"{edit.display_path} changed during planning; nothing was written, run"
                        " again"
                    )
            except OSError as e:
                raise JaxresidError(
                    f"cannot write {edit.display_path}: {e.strerror or e}; nothing was written"
                ) from e
            done.append(edit)
    except BaseException:
        for edit in reversed(done):
            with contextlib.suppress(OSError):
                replace_content(edit.path, edit.new, edit.old)
        raise


# -- sites -----------------------------------------------------------------------------------------


def _gather(
    files: FileRewrites,
    site: PlannedSite,
    checkpoints: dict[int, tuple[FileRewrite, Site, list[PlannedSite]]],
) -> None:
    """Add a planned checkpoint to those that come from the same checkpoint in source.

    One that stays as it is matters where another from the same source does not.
    """
    try:
        file, written = written_checkpoint(files, site.function, site.location, site.defined)
    except UnwritableError:
        if site.changed:
            raise
        return
    checkpoints.setdefault(id(written.node), (file, written, []))[2].append(site)


def _change(
    files: FileRewrites, file: FileRewrite, written: Site, planned: Sequence[PlannedSite]
) -> None:
    if not any(site.changed for site in planned):
        return
    wanted = {tuple(_parts(site)) for site in planned}
    if len(planned) > 1 and (len(wanted) > 1 or len(next(iter(wanted))) > 1):
        wanted = {tuple(_alike(site)) for site in planned}
    if len(wanted) > 1:
        where = ", ".join(_where(site) for site in planned)
        raise UnwritableError(
            file.where(written.node.lineno),
            f"this checkpoint serves several calls, for which the plan differs ({where}); give each"
            " its own by hand",
        )
    parts = wanted.pop()
    if len(parts) > 1:
        location = planned[0].location
        assert location is not None  # or its checkpoint would not have been found
        split_checkpoint(files, file, written, location, parts)
    elif parts[0].checkpointed:
        set_policy(file, written, parts[0].policy)
    else:
        remove_checkpoint(file, written)


def _problem(site: PlannedSite, error: UnwritableError) -> str:
    """Return the message for a place that cannot be written."""
    if site.library is None or site.kind == "segments" or "library" in str(error):
        return str(error)
    what = "loop" if site.kind == "scan" else "function"
    return (
        f"{_where(site)}: the {what} {site.function} that runs here is code of {site.library},"
        f" which is not edited; {by_hand(site.library)}"
    )


def write_at_place(
    files: FileRewrites, site: PlannedSite, subject: Subject, calls: ObservedCalls
) -> None:
    """Write a checkpoint that is not there yet: around a loop's body, a call or the target.

    Raises:
      UnwritableError: It cannot be written there.
    """
    parts = _parts(site)
    if not any(part.checkpointed for part in parts):
        return
    if site.kind == "whole":
        location = site.defined or definition(subject.fun)
        if location is None:
            raise UnwritableError(site.function, "the target is not a Python function")
        file = files.at(location.file, location.line)
        found = defined_at(file.facts, location)
        whole = found if isinstance(found, ast.stmt) else None
        given = calls.target if site.defined is None else None
        checkpoint_whole(file, whole, parts[0].policy, given)
        return
    if site.location is None:
        raise UnwritableError(site.function, "the line where it is called is not known")
    if site.kind == "block":
        raise UnwritableError(_where(site), _block_by_hand(parts))
    if site.kind == "scan":
        if len(parts) > 1:
            raise UnwritableError(
                _where(site), f"cannot change only some of the loops of {site.function}"
            )
        checkpoint_body(files, site.function, site.location, parts[0].policy)
        return
    path = files.path(site.location.file)
    given = calls.seen.get((path, site.location.line, site.function))
    checkpoint_call(files, site.function, site.location, parts, given, site.defined)


def _block_by_hand(parts: Sequence[Part]) -> str:
    """Return what to write for the iterations of a Python loop."""
    done = []
    for part in parts:
        which = "" if len(parts) == 1 else f" for {part.calls} iterations"
        policy = f", policy=jax.checkpoint_policies.{part.policy}" if part.policy else ""
        wrapped = f"jax.checkpoint(body{policy})" if part.checkpointed else "body"
        done.append(f"{wrapped}(...){which}")
    return (
        "by hand: make what this loop does in one iteration a function, body, of the arrays that it"
        f" reads, which returns those that it makes, and call {', then '.join(done)} in the loop"
    )


def _parts(site: PlannedSite) -> list[Part]:
    """Return how a place's calls are treated, as it is written."""
    return [Part(part.calls, *treatment(part)) for part in merged(site.parts)]


def _alike(site: PlannedSite) -> list[Part]:
    """Return how a place's calls are treated where all are treated alike, as one part.

    Raises:
      UnwritableError: They are not all treated alike.
    """
    parts = _parts(site)
    if len(parts) > 1:
        raise UnwritableError(_where(site), f"the plan differs between calls of {site.function}")
    return [Part(0, parts[0].checkpointed, parts[0].policy)]


def _where(site: PlannedSite) -> str:
    return f"{site.location.file}:{site.location.line}" if site.location else site.function


# -- segments --------------------------------------------------------------------------------------


def _loops(
    files: FileRewrites, sites: Sequence[PlannedSite], problems: list[str]
) -> Mapping[FileRewrite, Sequence[tuple[int, Segments]]]:
    """Return the loops to cut, by file: the number of each among its scans, and how it is cut.

    What cannot be found is added to the problems.
    """
    found: dict[FileRewrite, list[tuple[int, Segments]]] = {}
    for site in sites:
        if site.kind != "segments" or not site.changed:
            continue
        try:
            if site.location is None:
                raise UnwritableError(site.function, "the line of this loop is not known")
            (part,) = merged(site.parts)
            length = site.trips // site.calls
            segments = Segments(length, part.segments, part.policy)
            hint = cut_by_hand(site.library, segments) if site.library else None
            if hint is not None:
                raise UnwritableError(
                    _where(site), f"this loop is one of {site.library}; by hand: {hint}"
                )
            file = files.at(site.location.file, site.location.line)
            number = scan_number(file, site.location, segments)
            found.setdefault(file, []).append((number, segments))
        except UnwritableError as e:
            problems.append(_problem(site, e))
    return found


def _grouped(
    files: FileRewrites, sites: Sequence[PlannedSite], problems: list[str]
) -> Mapping[FileRewrite, Sequence[tuple[int, Groups]]]:
    """Return the Python loops to group, as `_loops` does those to cut."""
    found: dict[FileRewrite, list[tuple[int, Groups]]] = {}
    for site in sites:
        if site.kind != "groups" or not site.changed:
            continue
        try:
            if site.location is None:
                raise UnwritableError(site.function, "the line of this loop is not known")
            (part,) = merged(site.parts)
            groups = Groups(site.trips // site.calls, part.segments[0], part.policy)
            file = files.at(site.location.file, site.location.line)
            number = loop_number(file, site.location, groups)
            found.setdefault(file, []).append((number, groups))
        except UnwritableError as e:
            problems.append(_problem(site, e))
    return found


# -- names -----------------------------------------------------------------------------------------


def _names(sites: Sequence[PlannedSite], problems: list[str]) -> tuple[tuple[Expression, str], ...]:
    """Return the expressions to name, each with its name.

    An expression that would get two names is added to the problems.
    """
    found: dict[Expression, str] = {}
    for value in _values(sites):
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


def _values(sites: Sequence[PlannedSite]) -> list[PlannedValue]:
    return [v for site in sites if site.changed for part in site.parts for v in part.values]


def _name(files: FileRewrites, expression: Expression, name: str) -> None:
    """Wrap an expression in `checkpoint_name`."""
    file = files.at(expression.file, expression.line)
    node = _expression(file, expression)
    if isinstance(node, ast.NamedExpr):
        node = node.value
    spelled = file.spelling(
        "jax.ad_checkpoint.checkpoint_name", "jax.ad_checkpoint.checkpoint_name", node
    )
    # Inside a call's brackets a tuple without its own would be several arguments.
    needs = isinstance(node, (ast.Tuple, ast.Yield, ast.YieldFrom))
    opening, closing = ("(", ")") if needs else ("", "")
    file.wrap(node, f"{spelled}({opening}", f"{closing}, {file.string(name)})")


def _expression(file: FileRewrite, expression: Expression) -> ast.expr:
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
        f"`{expression.code}` is not an expression of its own in the source; name it by hand",
    )


__all__ = ["FileEdit", "PlanEdits", "diff", "edits", "plan_edits", "write", "write_at_place"]
