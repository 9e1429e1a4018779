"""What traces found in a document, as the protocol says it: hints, lenses, hovers, findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxresid.base.violations import Span, Violation
from jaxresid.server.answers import BETWEEN
from jaxresid.server.buffers import Buffer
from jaxresid.server.documents import Document
from jaxresid.server.traced.contents import Contents
from jaxresid.server.traced.kept_results import KeptResults
from jaxresid.server.traced.named_targets import NamedTargets

if TYPE_CHECKING:
    from jaxresid.serialization.latest import Head, Kept
    from jaxresid.server.traced.figures import FileFigures

Json = dict[str, Any]
_MOST_KNOWN = 256


@dataclass(frozen=True)
class Seen:
    """A kept result beside a document.

    Attributes:
      kept: the result.
      rows: where the lines of the document went since, from 1.
      is_stale: whether something that it depends on has changed since.
    """

    kept: Kept
    rows: Mapping[int, int]
    is_stale: bool

    def marked(self, text: str) -> str:
        """Return a text of it, which says whether it is of code that has changed since."""
        from jaxresid.render.in_editor import STALE

        return f"{text} {STALE}" if self.is_stale else text


class Shown:
    """Says what traces found in documents.

    Args:
      results: the kept results.
      contents: what files hold now.
      targets: the named targets of projects.
      folders: returns the folders of the workspace; of files elsewhere nothing is said.
    """

    def __init__(
        self,
        results: KeptResults,
        contents: Contents,
        targets: NamedTargets,
        folders: Callable[[], Sequence[Path]],
    ) -> None:
        self._results = results
        self._contents = contents
        self._targets = targets
        self._folders = folders
        self._figures: dict[tuple[int, str], tuple[Kept, FileFigures]] = {}

    # -- what is asked for -------------------------------------------------------------------

    def hints(self, document: Document, first: int, last: int, encoding: str) -> list[Json]:
        """Return the inlay hints of a document.

        Args:
          document: the document.
          first: the first line that is shown, from 0.
          last: the last one.
          encoding: what positions count.
        """
        from jaxresid.render.in_editor import hint_text

        buffer = self._buffer(document)
        seen = self.reports(document)
        texts: dict[int, list[str]] = {}
        for each in seen:
            for row, figures in self._figures_of(each.kept, document).lines.items():
                now, text = each.rows.get(row), hint_text(figures)
                if text and now is not None and first <= now - 1 <= last:
                    name = f"{each.kept.head.name}: " if len(seen) > 1 else ""
                    texts.setdefault(now, []).append(name + each.marked(text))
        return [
            {
                "position": {
                    "line": row - 1,
                    "character": buffer.character(row, len(buffer.seen[row - 1]), encoding),
                },
                "label": " | ".join(found),
                "paddingLeft": True,
            }
            for row, found in sorted(texts.items())
        ]

    def lenses(self, document: Document, *, runs: bool) -> list[Json]:
        """Return the code lenses of a document: of functions, checkpoints and targets.

        Args:
          document: the document.
          runs: whether commands may run.
        """
        if None not in document.parts or not self._is_in_workspace(document.path):
            return []
        figures = [_lens(row, text) for row, text in self._figure_lenses(document)]
        found = self.commands(document) if runs else ()
        return figures + [{**_lens(row, ""), "command": command} for row, command in found]

    def commands(self, document: Document) -> Iterator[tuple[int, Json]]:
        """Yield what can be done with the targets that a document defines, each with its row."""
        from jaxresid.server.traced.target_lenses import APPLY_PLAN, PLAN, TRACE, targets_here

        if None not in document.parts or not self._is_in_workspace(document.path):
            return
        lines = self._buffer(document).seen
        for target in targets_here(document.path, lines, self._targets):
            yield target.row, target.command(TRACE, f"Trace {target.name}")
            yield target.row, target.command(PLAN, f"Plan {target.name}")
            plan = self._results.last(str(target.folder), target.name, "plan")
            if plan is not None and plan.edits and not self.is_stale(plan):
                from jaxresid.render.in_editor import plan_text

                title = f"Apply the plan of {target.name}: {plan_text(plan.plan)}"
                yield target.row, target.command(APPLY_PLAN, title)

    def _figure_lenses(self, document: Document) -> list[tuple[int, str]]:
        """Return the rows and texts of lenses that are figures."""
        from jaxresid.render.in_editor import checkpoint_text, function_text, report_text
        from jaxresid.server.traced.target_lenses import targets_here

        lines = self._buffer(document).seen
        seen = self.reports(document)
        found: dict[tuple[int, str], None] = {}
        for each in seen:
            name = f"{each.kept.head.name}: " if len(seen) > 1 else ""
            figures = self._figures_of(each.kept, document)
            for function, rows in figures.functions.items():
                here = [each.rows[row] for row in rows if row in each.rows]
                at = _definition(lines, function, min(here)) if here else None
                text = function_text([figures.lines[row] for row in rows])
                if at is not None and text:
                    found[at, name + each.marked(text)] = None
            for row, checkpoint in figures.checkpoints:
                if row in each.rows:
                    text = each.marked(checkpoint_text(checkpoint))
                    found[each.rows[row], name + text] = None
        for target in targets_here(document.path, lines, self._targets):
            for each in seen:
                head = each.kept.head
                if (head.folder, head.target) == (str(target.folder), target.name):
                    text = each.marked(report_text(each.kept.report))
                    found[target.row, f"{head.name}: {text}"] = None
        return list(found)

    def hover(self, document: Document, line: int) -> str | None:
        """Return what a line keeps, in Markdown; None where nothing is known of it.

        Args:
          document: the document.
          line: the line, from 0.
        """
        from jaxresid.render.in_editor import hover_page

        pages = []
        for each in self.reports(document):
            head = each.kept.head
            for row, figures in self._figures_of(each.kept, document).lines.items():
                if each.rows.get(row) == line + 1:
                    words = " ".join((head.name, *head.words[1:]))
                    title = each.marked(f"{words} on {each.kept.result.place.name}")
                    pages.append(hover_page(title, figures))
        return BETWEEN.join(pages) or None

    def findings(self, document: Document) -> tuple[Violation, ...]:
        """Return what `check` found in a document, where it is now.

        Findings of lines that changed are left out, and fixes of files that did.
        """
        path = str(document.path)
        found: dict[Violation, None] = {}
        for kept in self._of_targets(document, ("check",)):
            here = [v for v in kept.findings if kept.absolute(v.path) == path]
            if not here:
                continue
            each = self._seen(kept, document)
            of_size = "" if kept.head.size is None else f"{kept.head.name}: "
            for violation in here:
                moved = _moved(violation, each.rows)
                if moved is not None:
                    now = replace(
                        moved,
                        message=each.marked(f"{of_size}{violation.message}"),
                        fix=None if each.is_stale else violation.fix,
                        path=path,
                        related=tuple(
                            replace(r, path=kept.absolute(r.path)) for r in violation.related
                        ),
                    )
                    found[now] = None
        return tuple(found)

    def reports(self, document: Document) -> tuple[Seen, ...]:
        """Return the last report of each target that has something to say of a document."""
        found = self._of_targets(document, ("report", "check"))
        return tuple(self._seen(kept, document) for kept in found)

    def freshness(self) -> tuple[tuple[Head, bool], ...]:
        """Return for each result of the workspace whether it is of code that has changed."""
        from jaxresid.server.traced.kept_results import in_folders

        mine = in_folders(self._results.all, self._folders())
        return tuple((kept.head, self.is_stale(kept)) for kept in mine)

    def is_stale(self, kept: Kept) -> bool:
        """Return whether something that a result depends on has changed since."""
        return any(self._contents.digest(s.path) != s.digest for s in kept.head.sources)

    # -- how it is found ---------------------------------------------------------------------

    def _of_targets(self, document: Document, commands: Sequence[str]) -> list[Kept]:
        """Return the newest result of some commands for each target that a document is in.

        Where that is of one of several batch sizes, it is those of all of them.
        """
        path = str(document.path)
        if None not in document.parts or not self._is_in_workspace(document.path):
            return []
        found: dict[tuple[str, str], list[Kept]] = {}
        for kept in self._results.all:
            head = kept.head
            if head.command in commands and path in kept.sources and self._is_named(kept):
                beside = found.setdefault((head.folder, head.target), [])
                if not beside or _is_another_size(head, beside[0].head):
                    beside.append(kept)
        every = [kept for beside in found.values() for kept in beside]
        return sorted(every, key=lambda k: (k.head.folder, k.head.target, k.head.size or 0))

    def _is_in_workspace(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._folders())

    def _is_named(self, kept: Kept) -> bool:
        named = self._targets.of(Path(kept.head.folder))
        return named is None or any(target.name == kept.head.target for target in named)

    def _seen(self, kept: Kept, document: Document) -> Seen:
        rows = self._contents.rows(document, kept.sources[str(document.path)])
        return Seen(kept, rows, self.is_stale(kept))

    def _figures_of(self, kept: Kept, document: Document) -> FileFigures:
        from jaxresid.server.traced.figures import file_figures

        path = str(document.path)
        known = self._figures.get((id(kept), path))
        if known is None or known[0] is not kept:
            if len(self._figures) > _MOST_KNOWN:
                self._figures.clear()
            known = self._figures[id(kept), path] = kept, file_figures(kept, kept.report, path)
        return known[1]

    @staticmethod
    def _buffer(document: Document) -> Buffer:
        return document.parts[None].buffer


def _is_another_size(head: Head, newest: Head) -> bool:
    return None not in (head.size, newest.size) and head.words == newest.words


def _lens(row: int, title: str) -> Json:
    at = {"line": row - 1, "character": 0}
    # A command without a name is a text.
    return {"range": {"start": at, "end": at}, "command": {"title": title, "command": ""}}


def _definition(lines: Sequence[str], function: str, row: int) -> int | None:
    """Return the row of the `def` of a function, above one of its lines; None where there is none.

    Args:
      lines: the lines of the file.
      function: its qualified name.
      row: a row in it, from 1.
    """
    name = re.escape(function.rpartition(".")[2])
    pattern = re.compile(rf"\s*(async\s+)?def\s+{name}\b")
    return next((at for at in range(row, 0, -1) if pattern.match(lines[at - 1])), None)


def _moved(violation: Violation, rows: Mapping[int, int]) -> Violation | None:
    """Return a violation where its lines are now; None where one of them changed."""
    span = violation.span
    all_rows = range(span.row, span.end_row + 1)
    now = [rows[row] for row in all_rows if row in rows]
    if len(now) < len(all_rows) or now[-1] - now[0] != span.end_row - span.row:
        return None
    moved = Span(now[0], span.column, now[-1], span.end_column)
    silenced = tuple(rows[row] for row in violation.noqa_rows if row in rows)
    return replace(violation, span=moved, noqa_rows=silenced)
