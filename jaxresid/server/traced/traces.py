"""What the server says of the last traces, and when it says that there are new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxresid.server.answers import BETWEEN, Findings
from jaxresid.server.documents import Document, OpenFiles
from jaxresid.server.traced.contents import Contents
from jaxresid.server.traced.kept_results import KeptResults
from jaxresid.server.traced.named_targets import NamedTargets
from jaxresid.server.traced.shown import Shown

if TYPE_CHECKING:
    from jaxresid.serialization.latest import Head, Kept

_LOOK_S = 1.0


class Traces:
    """Answers from the last results of the named targets.

    Args:
      files: the open documents.
      folders: returns the folders of the workspace.
      changed: called where what was answered before no longer holds; with whether there are new
        results.
    """

    def __init__(
        self,
        files: OpenFiles,
        folders: Callable[[], Sequence[Path]],
        changed: Callable[[bool], None],
    ) -> None:
        self._files = files
        self._changed = changed
        self._results = KeptResults()
        self._lock = asyncio.Lock()
        self._contents = Contents(self.document_at)
        self.targets = NamedTargets()
        self._shown = Shown(self._results, self._contents, self.targets, folders)
        self._freshness: tuple[tuple[Head, bool], ...] = ()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for results, now and then again and again."""
        self._looking = asyncio.ensure_future(self._look_on())

    async def _look_on(self) -> None:
        while True:
            with suppress(OSError):
                await self.look()
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Read results that are new on the disk, and say so."""
        async with self._lock:
            is_new = await asyncio.to_thread(self._results.look)
        if is_new:
            self._compare(is_new=True)

    def edited(self) -> None:
        """Say so where an edit made results those of code that has changed, or undid that."""
        if self._results.all:
            self._compare(is_new=False)

    def _compare(self, *, is_new: bool) -> None:
        before, self._freshness = self._freshness, self._shown.freshness()
        if before != self._freshness:  # and not where only those of other projects did
            self._changed(is_new)

    async def hints(self, uri: str, first: int, last: int, encoding: str) -> list[Any]:
        """Return the inlay hints of a document between two lines, from 0."""
        document = await self._after_looking(uri)
        return [] if document is None else self._shown.hints(document, first, last, encoding)

    async def lenses(self, uri: str, *, runs: bool) -> list[Any]:
        """Return the code lenses of a document, those that run something only where that is on."""
        document = await self._after_looking(uri)
        return [] if document is None else self._shown.lenses(document, runs=runs)

    def actions(self, document: Document, first: int, last: int) -> list[Any]:
        """Return the commands for the targets that some lines define, as actions.

        Args:
          document: the document.
          first: the first line, from 0.
          last: the last one.
        """
        found = self._shown.commands(document)
        here = [command for row, command in found if first <= row - 1 <= last]
        return [{"title": command["title"], "command": command} for command in here]

    async def hover(self, uri: str, line: int, page: Any, *, markdown: bool) -> Any:
        """Return a hover with what a line keeps below what it has already; None for neither.

        Args:
          uri: the document.
          line: the line, from 0.
          page: the hover without it, or None.
          markdown: whether the client shows Markdown.
        """
        document = await self._after_looking(uri)
        kept = None if document is None else self._shown.hover(document, line)
        if kept is None:
            return page
        if page is None:
            kind = "markdown" if markdown else "plaintext"
            return {"contents": {"kind": kind, "value": kept}}
        contents = page["contents"]
        return {**page, "contents": {**contents, "value": contents["value"] + BETWEEN + kept}}

    def added_to(self, findings: Findings) -> Findings:
        """Return the findings of a document with those of `check` that the linter does not have."""
        if not self._results.all:
            return findings
        known = {(v.code, v.span.row) for v in findings.violations}
        traced = self._shown.findings(findings.document)
        mine = tuple(v for v in traced if (v.code, v.span.row) not in known)
        return replace(findings, traced=mine)

    async def _after_looking(self, uri: str) -> Document | None:
        await self.look()
        file = self._files.file(uri)
        return file.document if file is not None and file.uri == uri else None

    def plan(self, folder: str, target: str) -> Kept | None:
        """Return the last plan of a target of a project; None for none."""
        return self._results.last(folder, target, "plan")

    def summary(self, folder: str, target: str, command: str) -> str:
        """Return the figures of what a command has just found for a target of a project."""
        from jaxresid.render.in_editor import plan_text, report_text
        from jaxresid.results import Plan

        kept = self._results.last(folder, target, command)
        if kept is None:
            return f"{target}: done, but nothing could be kept in the cache to show"
        result = kept.result
        text = plan_text(result) if isinstance(result, Plan) else report_text(result)
        return f"{target}: {text}"

    def digest(self, path: str) -> str | None:
        """Return the digest of a file as it is now; None where it cannot be read."""
        return self._contents.digest(path)

    def document_at(self, path: Path) -> Document | None:
        """Return the document of a file that is open; None for others."""
        file = self._files.at(path)
        return None if file is None else file.document
