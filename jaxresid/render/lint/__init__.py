"""Lint results as text: the format that is asked for is imported from `formats/`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from jaxresid.base.option_types import OutputFormat
from jaxresid.base.text.safe_text import inert

if TYPE_CHECKING:
    from jaxresid.base.violations import Linted, RuleInfo

FORMATS: tuple[str, ...] = get_args(OutputFormat)
STATISTICS_FORMATS = ("text", "concise", "json")


def render(
    format: str,
    results: Sequence[Linted],
    rules: Sequence[RuleInfo],
    root: Path,
    *,
    version: str,
    color: bool = False,
    width: int = 80,
    fixed: int = 0,
    unsafe_fixes: bool = False,
    summary: bool = True,
) -> str:
    """Return all findings in a format; the text ends in a newline unless it is empty.

    Args:
      format: one of `FORMATS`.
      results: the results of linting, one for each file.
      rules: what `sarif` may say about the rules that occur.
      root: the directory that relative paths start from and are printed relative to.
      version: the version of jaxresid.
      color: whether the formats for people are coloured.
      width: the width of the terminal, in columns.
      fixed: how many findings were fixed already and are not in `results`.
      unsafe_fixes: whether fixes marked unsafe count as fixable.
      summary: whether the formats for people end in a count.

    Raises:
      ValueError: there is no such format.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {format!r}")
    from jaxresid.render.lint.run import Run

    run = Run(
        results=tuple(results),
        rules=tuple(rules),
        root=os.path.abspath(root),
        version=version,
        color=color,
        width=width,
        fixed=fixed,
        unsafe_fixes=unsafe_fixes,
        summary=summary,
    )
    # With nothing to show, what is left to say is the same, and quicker to load.
    name = "concise" if format == "text" and not run.violations else format
    module = importlib.import_module(f"{__name__}.formats.{name.replace('-', '_')}")
    out: str = module.render(run)
    return out if format == "github" else inert(out)


def statistics(
    results: Sequence[Linted],
    rules: Sequence[RuleInfo],
    format: str,
    *,
    unsafe_fixes: bool = False,
) -> str:
    """Return the number of findings of each rule, the most frequent first.

    Args:
      results: the results of linting, one for each file.
      rules: the rules that the names come from.
      format: one of `STATISTICS_FORMATS`; `text` and `concise` give the same table.
      unsafe_fixes: whether fixes marked unsafe count as fixable.

    Raises:
      ValueError: the format has no statistics.
    """
    from jaxresid.render.lint.counts import counts, counts_json, counts_text

    if format not in STATISTICS_FORMATS:
        raise ValueError(
            f"statistics need one of the formats {', '.join(STATISTICS_FORMATS)}, not {format!r}"
        )
    counted = counts(results, rules, unsafe_fixes=unsafe_fixes)
    return inert(counts_json(counted) if format == "json" else counts_text(counted))
