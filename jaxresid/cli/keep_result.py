"""Keep the last result of a named target, for editors."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxresid.advice.plan.source.file_edits import FileEdit
    from jaxresid.base.violations import Violation
    from jaxresid.cli.options.request import Request
    from jaxresid.results import Plan, Report
    from jaxresid.serialization.latest import Command


def keep_result(
    command: Command,
    request: Request,
    result: Report | Plan,
    *,
    since: float,
    findings: Sequence[Violation] = (),
    edits: Sequence[FileEdit] = (),
) -> None:
    """Keep a result where the configuration names its target; of any other nothing is kept.

    `since` is when the command began, in seconds since 1970.
    """
    if request.name is None or request.folder is None:
        return
    from jaxresid.linter.text.source import SourceText
    from jaxresid.serialization import latest
    from jaxresid.serialization.source_digests import digest_of

    name, _, is_of_several = request.name.partition(" ")  # as `check` names batch sizes
    latest.keep(
        command,
        name,
        request.folder,
        # The size, which the words of one of several end in, is in `size`.
        request.words[:-2] if is_of_several else request.words,
        replace(result, lifetimes=()),  # which are long, and no editor shows
        size=request.batch.listed[0] if is_of_several else None,
        since=since,
        now=time.time(),
        loaded=(*_modules_below(request.folder), os.path.join(request.folder, "pyproject.toml")),
        findings=findings,
        edits=[
            latest.KeptEdit(
                os.path.abspath(edit.path),
                digest_of(edit.old),
                SourceText.decode(edit.new, edit.display_path).text,
            )
            for edit in edits
        ],
    )


def _modules_below(folder: str) -> Iterator[str]:
    """Yield the files of modules that are loaded from a folder, installed packages left out."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for file in files:
        if isinstance(file, str) and file.startswith(folder + os.sep) and file.endswith(".py"):
            is_installed = "site-packages" in file or "dist-packages" in file
            yield from [] if is_installed else [file]
