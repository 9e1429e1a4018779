"""When to lint what: one document at a time, the last one that was edited first.

Results of a text that has changed since are dropped.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from jaxresid.base.errors import JaxresidError
from jaxresid.base.violations import Violation
from jaxresid.server.analysis_process import AnalysisProcess
from jaxresid.server.answers import Findings
from jaxresid.server.documents import OpenFile, OpenFiles


class Linting:
    """Lints open documents in another process.

    Args:
      files: the open documents.
      encoding: what positions count.
      executor: runs one function at a time, so that what projects are known by needs no lock.
      publish: shows what was found in a document.
      tell: shows a line to the user.
    """

    def __init__(
        self,
        files: OpenFiles,
        encoding: str,
        executor: Executor,
        publish: Callable[[Findings], None],
        tell: Callable[[str], None],
    ) -> None:
        self._files = files
        self._encoding = encoding
        self._executor = executor
        self._publish = publish
        self._tell = tell
        self._analysis = AnalysisProcess()
        # Grows whenever a document may have other findings than before, its text unchanged.
        self._epoch = 0
        self._known: dict[str, tuple[OpenFile, int, asyncio.Task[Findings]]] = {}
        self._waiting: list[str] = []
        self._pump: asyncio.Task[None] | None = None
        self._told: set[str] = set()

    def use(self, folders: Sequence[Path]) -> None:
        """Take other folders for the workspace."""
        self._executor.submit(self._analysis.use, folders)
        self.look_again()

    def close(self) -> None:
        """End what is being linted, and say nothing of that."""
        self._tell = lambda _: None
        self._analysis.close()

    def look_again(self) -> None:
        """Look again at files and configuration, which changed on the disk."""
        self._executor.submit(self._analysis.forget)
        self._told.clear()
        self.changed()

    def changed(self, uri: str | None = None) -> None:
        """Lint all documents again, as one of them changed: that one first."""
        self._epoch += 1
        self._known = {u: known for u, known in self._known.items() if u in self._files}
        first = [] if uri is None else [uri]
        rest = [*self._waiting, *self._files]
        self._waiting = [u for u in dict.fromkeys([*first, *rest]) if u in self._files]
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._lint_waiting())

    async def _lint_waiting(self) -> None:
        while self._waiting:
            uri = self._waiting.pop(0)
            findings = await self._latest(uri)
            if findings is not None and uri not in self._waiting and uri in self._files:
                self._publish(findings)

    async def _latest(self, uri: str) -> Findings | None:
        """Return what there is to say of a document as it is when this begins."""
        file = self._files.file(uri)
        if file is None:
            return None
        known = self._known.get(file.uri)
        if known is None or known[0] is not file or known[1] != self._epoch:
            task = asyncio.ensure_future(self._lint(file))
            known = self._known[file.uri] = file, self._epoch, task
        return await asyncio.shield(known[2])

    async def findings(self, uri: str) -> Findings | None:
        """Return what there is to say of a document as it is now; None if it is not open.

        The document may be named by one of its texts.
        """
        while True:
            file = self._files.file(uri)
            found = await self._latest(uri)
            if found is None or self._files.file(uri) is file:
                return found

    async def fixed(self, uri: str) -> tuple[Findings, bytes] | None:
        """Return a document's findings, and its content after all fixes; None if it is not open."""
        found = await self.findings(uri)
        file = self._files.file(uri)
        if found is None or file is None:
            return None
        if not any(v.fix for v in found.violations):
            return found, found.document.content
        run = asyncio.get_running_loop().run_in_executor
        contents, analysis = self._files.contents(), self._analysis
        try:
            fixed = await run(self._executor, analysis.fixed, file.path, contents)
        except Exception as e:
            self._report(e, file.path)
            return None
        return (found, fixed) if self._files.file(uri) is file else None

    async def _lint(self, file: OpenFile) -> Findings:
        contents, analysis = self._files.contents(), self._analysis
        neighbours = {str(f.path): f for f in map(self._files.file, self._files) if f is not None}
        violations: tuple[Violation, ...] = ()
        if file.document.is_python:
            run = asyncio.get_running_loop().run_in_executor
            try:
                linted = await run(self._executor, analysis.lint, file.path, contents)
                violations = linted.violations
            except Exception as e:
                self._report(e, file.path)
        return Findings(file.document, violations, neighbours, self._encoding)

    def _report(self, error: Exception, path: Path) -> None:
        """Tell the user what kept a file from being linted, once."""
        if isinstance(error, JaxresidError):
            text = f"jaxresid: {error}"
        else:
            traceback.print_exception(error)
            text = f"jaxresid: internal error: {type(error).__name__}: {error} ({path})"
        if text not in self._told:
            self._told.add(text)
            self._tell(text)
