"""What growth is held against: the lockfile, a saved report, or a revision of git."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jaxresid.base import regular_files
from jaxresid.base.errors import InputsError
from jaxresid.base.progress import Progress
from jaxresid.cli.options.limits import GrowthOptions
from jaxresid.settings.project import project

if TYPE_CHECKING:
    from jaxresid.advice.check.growth import Earlier
    from jaxresid.results import Baseline


@dataclass(frozen=True, slots=True)
class GrowingTarget:
    """A target whose growth is held.

    Attributes:
      name: what it is called, also in the lockfile.
      target: what the command line or the configuration calls it.
      arguments: its options as typed, and its place.
    """

    name: str
    target: str
    arguments: tuple[str, ...]


def lockfile(given: GrowthOptions, config: Path | None, *, isolated: bool) -> Path:
    """Return the lockfile of the project, or the one that is given.

    Args:
      given: The options.
      config: The configuration file that is given; None for the nearest one.
      isolated: Whether there is no configuration.
    """
    from jaxresid.advice.check.lockfile import NAME

    if given.baseline is not None:
        return Path(given.baseline)
    found = project(Path(), config_file=config, isolated=isolated).file
    return Path(NAME) if found is None else _shown(Path(os.path.abspath(found)).parent / NAME)


def check_growth(given: GrowthOptions, *, grows: bool) -> None:
    """Raise UsageError for combinations of options of which one would be ignored.

    Args:
      given: The options.
      grows: Whether there is a limit on growth.
    """
    if given.update and given.baseline is not None and not given.baseline.endswith(".lock"):
        raise click.UsageError(
            f"--update writes a lockfile, and {given.baseline} is none: leave --baseline out, or"
            " name a file that ends in .lock"
        )
    if given.baseline is not None and not grows and not given.update:
        raise click.UsageError("--baseline needs --max-growth, such as --max-growth 2%")


def earlier_of(
    given: GrowthOptions,
    file: Path,
    targets: Sequence[GrowingTarget],
    compiles: bool,
    say: Progress,
) -> Mapping[str, Earlier]:
    """Return what each target is held against, by its name.

    Args:
      given: The options.
      file: The lockfile, where no baseline is given.
      targets: The targets.
      compiles: Whether peaks are XLA's.
      say: Called with a text that says what is being done.

    Raises:
      InputsError: There is no such baseline, or it has no such target.
      JaxresidError: It cannot be read, or a target cannot be traced there.
    """
    from jaxresid.advice.check.growth import Earlier, baseline_of

    text = given.baseline
    if text is not None and text.endswith(".json"):
        from jaxresid.results import Report
        from jaxresid.serialization.files import load

        if len(targets) > 1:
            raise InputsError(
                f"{text} is a report of one target, and {len(targets)} are checked: name one of"
                f" them, {targets[0].name}"
            )
        report = load(text, Report)
        return {targets[0].name: Earlier(text, baseline_of(report, Path()), report)}
    if text is None or file.is_file():
        known = _read(file)
        shown = str(file)
        for each in targets:
            if each.name not in known:
                raise InputsError(
                    f"{shown} has no `{each.name}`; the same command with --update writes it there"
                )
        return {each.name: Earlier(shown, known[each.name]) for each in targets}
    from jaxresid.cli.options.sides import is_in_git

    if not is_in_git(text):
        raise InputsError(
            f"--baseline {text}: there is no such file, and no such revision of git here"
        )
    from jaxresid.revisions.reports import ReportRequest, reports_of

    more = ("--compile",) if compiles else ()
    requests = [
        ReportRequest(text, each.target, (*each.arguments, *more), text) for each in targets
    ]
    reports = reports_of(requests, say)
    return {
        each.name: Earlier(text, baseline_of(report, Path()), report)
        for each, report in zip(targets, reports, strict=True)
    }


def updated(
    file: Path, made: Mapping[str, Baseline], names: Sequence[str] | None
) -> tuple[str, ...]:
    """Write figures into a lockfile; return the targets whose figures are new there.

    Args:
      file: The lockfile.
      made: The figures by target.
      names: All targets that the file may have; None to keep those that it has.

    Raises:
      InputsError: The file is there and is no lockfile.
      JaxresidError: It cannot be written.
    """
    from jaxresid.advice.check.lockfile import lockfile_text
    from jaxresid.base.text_files import write_text

    if regular_files.leads_out(file, file.parent):
        raise InputsError(f"{file} is a link that leads out of its directory: it is not written")
    before = _read(file) if file.exists() else {}
    kept = {name: old for name, old in before.items() if names is None or name in names}
    text = lockfile_text({**kept, **made})
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        write_text(str(file), text)
    after = _read(file)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    return tuple(sorted(changed))


def _read(file: Path) -> dict[str, Baseline]:
    from jaxresid.advice.check.lockfile import baselines_in

    try:
        text = regular_files.read_limited(file).decode("utf-8")
    except FileNotFoundError:
        raise InputsError(
            f"there is no {file} to hold growth against: the same command with --update"
            " writes it, or give --baseline FILE or REV"
        ) from None
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise InputsError(f"cannot read {file}: {reason}") from e
    return baselines_in(text, str(file))


def _shown(path: Path) -> Path:
    return Path(os.path.relpath(path))
