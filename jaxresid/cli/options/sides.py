"""The two sides of a difference: saved reports, revisions, targets, interpreters and flags."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.base.progress import Progress
from jaxresid.results import Report
from jaxresid.revisions.git import is_revision, merge_base, repository_of
from jaxresid.revisions.reports import ReportRequest, outcomes_of
from jaxresid.serialization.files import load
from jaxresid.settings.project import Project, project

_HERE = "working tree"


@dataclass(frozen=True, slots=True)
class SavedReport:
    """A side that is a file.

    Attributes:
      file: the file.
      report: what it holds.
    """

    file: str
    report: Report


Side = SavedReport | ReportRequest


@dataclass(frozen=True, slots=True)
class AskedSides:
    """What the command line says of the two sides.

    Attributes:
      a: the first one; None where it is not given.
      b: the second one; None where it is not given.
      targets: the targets to trace on both; empty: those of the configuration.
      python: the interpreter that traces the second side; None: this one.
      flags: flags of JAX on the second side.
      arguments: the options of the target, as they were typed.
    """

    a: str | None
    b: str | None
    targets: tuple[str, ...] = ()
    python: str | None = None
    flags: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def varies(self) -> bool:
        """Whether the second side is another environment, of the same tree if none is named."""
        return self.python is not None or bool(self.flags)


def sides_of(asked: AskedSides) -> tuple[tuple[Side, Side], ...]:
    """Return the pairs of sides to compare, one for each target.

    Raises:
      InputsError: a side is nothing that can be compared, or there is no target.
      JaxresidError: a file is no saved report.
    """
    here = project(Path())
    if asked.a is not None and asked.b is None and _is_range(asked.a):
        asked = _range(asked)
    if asked.a is None and not asked.varies:
        raise InputsError(
            "nothing to compare with: write a revision (jaxresid diff main), a saved report"
            " (jaxresid diff before.json), --flag or --python"
        )
    first = _named(asked.a, here)
    second = _named(asked.b, here) if asked.b is not None else first if asked.varies else _Tree()
    _check(first, second, asked)
    return tuple(_pairs(first, second, asked, here))


def traced(
    pairs: Sequence[tuple[Side, Side]], say: Progress | None = None
) -> tuple[tuple[Report, Report] | JaxresidError, ...]:
    """Return the reports of pairs of sides, those of files and those that are made.

    Where one of a pair cannot be made, its error is in their place.

    Raises:
      JaxresidError: none of them can be made, or a revision, an interpreter or a flag is none.
    """
    requests = [side for pair in pairs for side in pair if isinstance(side, ReportRequest)]
    made = iter(outcomes_of(requests, say) if requests else ())
    found: list[tuple[Report, Report] | JaxresidError] = []
    for pair in pairs:
        sides = [s.report if isinstance(s, SavedReport) else next(made) for s in pair]
        reports = [side for side in sides if isinstance(side, Report)]
        errors = [side for side in sides if isinstance(side, JaxresidError)]
        found.append(errors[0] if errors else (reports[0], reports[1]))
    if all(isinstance(each, JaxresidError) for each in found):
        raise next(each for each in found if isinstance(each, JaxresidError))
    return tuple(found)


def label_of(side: Side) -> str:
    """Return what a side is called."""
    return side.file if isinstance(side, SavedReport) else side.label


@dataclass(frozen=True, slots=True)
class _Tree:
    """Files that are traced: of a revision, or those that are here; of a target if it names one."""

    label: str = _HERE
    revision: str | None = None
    target: str | None = None


def _named(text: str | None, here: Project) -> SavedReport | _Tree:
    """Return what a side stands for.

    Raises:
      InputsError: it stands for nothing.
      JaxresidError: it is a file that is no saved report.
    """
    if text is None:
        return _Tree()
    if text.endswith(".json"):
        return SavedReport(text, load(text, Report))
    if ":" in text:
        return _Tree(text, target=text)
    if is_in_git(text):
        return _Tree(text, revision=text)
    if any(each.name == text for each in here.targets):
        return _Tree(text, target=text)
    if _is_file(text):
        return SavedReport(text, load(text, Report))
    where = repository_of(Path.cwd())
    raise InputsError(
        f"{text!r} is no revision{f' of {where}' if where else ''}, no saved report and no target:"
        " write a revision such as main, a file such as before.json, or module:function"
    )


def is_in_git(text: str) -> bool:
    """Return whether a text is a revision of the repository that we are in, if we are in one."""
    return repository_of(Path.cwd()) is not None and is_revision(text, Path.cwd())


def _is_range(text: str) -> bool:
    return ".." in text and not (":" in text or text.endswith(".json") or _is_file(text))


def _range(asked: AskedSides) -> AskedSides:
    """Return `A..B` as two sides, as git has it; of `A...B` the first is what they have in common.

    Raises:
      InputsError: one of them is no revision.
    """
    assert asked.a is not None
    one, dots, other = asked.a.partition("...")
    if not dots:
        one, _, other = asked.a.partition("..")
        return replace(asked, a=one or "HEAD", b=other or "HEAD")
    base = merge_base(one or "HEAD", other or "HEAD", Path.cwd())
    return replace(asked, a=base.commit[:12], b=other or "HEAD")


def _check(first: SavedReport | _Tree, second: SavedReport | _Tree, asked: AskedSides) -> None:
    """Raise an InputsError where options have nothing to be about."""
    if asked.varies and isinstance(second, SavedReport):
        raise InputsError(
            f"--flag and --python need something to trace, and {second.file} is a saved report"
        )
    if isinstance(first, SavedReport) and isinstance(second, SavedReport):
        if asked.targets or asked.arguments:
            option = "--target" if asked.targets else asked.arguments[0].partition("=")[0]
            raise InputsError(f"{option} needs something to trace; both sides are saved reports")
    elif asked.targets and any(isinstance(s, _Tree) and s.target for s in (first, second)):
        raise InputsError("--target is given, and so is a target as a side: write one of them")


def _pairs(
    first: SavedReport | _Tree, second: SavedReport | _Tree, asked: AskedSides, here: Project
) -> Iterator[tuple[Side, Side]]:
    """Yield the sides for each target, which those that are a target have as theirs."""
    saved = [side for side in (first, second) if isinstance(side, SavedReport)]
    own = [side.target for side in (first, second) if isinstance(side, _Tree) and side.target]
    if len(saved) == 2:
        yield saved[0], saved[1]
        return
    if own:
        targets = [(own[0], own[-1])]
    else:
        names = asked.targets or _default_targets(saved[0] if saved else None, here)
        targets = [(name, name) for name in names]
    if saved and len(targets) > 1:
        raise InputsError(
            "a saved report is of one target, and the other side has several; name it:"
            f" --target {targets[0][0]}"
        )
    for one, other in targets:
        yield (
            _request(first, one, asked, is_second=False),
            _request(second, other, asked, is_second=True),
        )


def _request(side: SavedReport | _Tree, target: str, asked: AskedSides, *, is_second: bool) -> Side:
    if isinstance(side, SavedReport):
        return side
    varies = is_second and asked.varies
    extras = [*asked.flags, *([asked.python] if asked.python else [])] if varies else []
    label = f"{side.label} with {', '.join(extras)}" if extras else side.label
    return ReportRequest(
        label,
        target,
        asked.arguments,
        side.revision,
        asked.python if varies else None,
        asked.flags if varies else (),
    )


def _default_targets(saved: SavedReport | None, here: Project) -> list[str]:
    """Return the target of a saved report, else those of the configuration.

    Raises:
      InputsError: there is none.
    """
    if saved is not None:
        name = saved.report.target.name
        found = [each.name for each in here.targets if name in (each.name, each.target)]
        if found or ":" in name:
            return found[:1] or [name]
    elif here.targets:
        return [each.name for each in here.targets]
    raise InputsError(
        "no target: write --target module:function, or [tool.jaxresid.targets.NAME] in"
        " pyproject.toml"
    )


def _is_file(text: str) -> bool:
    return os.path.isfile(text)
