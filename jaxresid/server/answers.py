"""What the linter found in a document, as the protocol says it: diagnostics, actions, hovers.

All of it is JSON: camelCase names, positions in the units that were agreed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxresid.base.violations import Edit, Violation
from jaxresid.linter.text import suppress
from jaxresid.render.lint.formats.lsp import diagnostic, edits_at
from jaxresid.server.buffers import Buffer
from jaxresid.server.documents import Document, OpenFile

FIX_ALL = "source.fixAll.jaxresid"
_QUICK_FIX = "quickfix"
# Kinds of actions are a tree: who asks for `source` asks for all below it.
KINDS = (_QUICK_FIX, FIX_ALL)
# The source of what a trace found; what the linter finds is of `jaxresid`.
CHECK = "jaxresid check"
# Two pages of a hover.
BETWEEN = "\n---\n\n"

Json = dict[str, Any]


@dataclass(frozen=True)
class Findings:
    """What the linter found in a document.

    Attributes:
      document: the document as it was then.
      violations: the violations.
      neighbours: the other open documents, by the paths under which related places are.
      encoding: what positions count.
      traced: what `check` found in it, at the lines where that is now.
    """

    document: Document
    violations: tuple[Violation, ...]
    neighbours: Mapping[str, OpenFile]
    encoding: str
    traced: tuple[Violation, ...] = ()

    def uri(self, path: str, cell: int | None) -> str:
        """Return the URI of a file or of a cell, as the client named it where it is open."""
        document = self._document(path)
        if document is None:
            return Path(path).as_uri()
        return document.parts[cell].uri if cell in document.parts else document.uri

    def character(self, path: str, cell: int | None, row: int, column: int) -> int:
        """Return the units in front of a column, of a file that is open or not."""
        document = self._document(path)
        buffer = document.parts[cell].buffer if document and cell in document.parts else None
        if buffer is None:
            buffer = _saved(path)
        return column if buffer is None else buffer.character(row, column, self.encoding)

    def _document(self, path: str) -> Document | None:
        if path == str(self.document.path):
            return self.document
        return self.neighbours[path].document if path in self.neighbours else None

    def diagnostics(self, cell: int | None) -> list[Json]:
        """Return the diagnostics of one text of the document."""
        return [self._diagnostic(v) for v in (*self._of(cell), *self._traced_in(cell))]

    def _diagnostic(self, violation: Violation) -> Json:
        shown = diagnostic(violation, self)
        return {**shown, "source": CHECK} if violation in self.traced else shown

    def _traced_in(self, cell: int | None) -> tuple[Violation, ...]:
        return self.traced if cell is None else ()  # nothing traces a notebook

    def _of(self, cell: int | None) -> list[Violation]:
        # A notebook that cannot be read has them outside of all cells: at its first.
        first = next(iter(self.document.parts), None)
        return [
            v
            for v in self.violations
            if (v.cell if v.cell in self.document.parts else first) == cell
        ]

    def quick_fixes(self, cell: int | None, first: int, last: int) -> Iterator[Json]:
        """Yield the actions for the findings at some lines: each one's fix, and its suppression.

        Args:
          cell: the text of the document.
          first: the first line, from 0.
          last: the last line.
        """
        buffer = self.document.parts[cell].buffer
        for violation in (*self._of(cell), *self._traced_in(cell)):
            if violation.span.row - 1 > last or violation.span.end_row - 1 < first:
                continue
            shown = [self._diagnostic(violation)]
            if violation.fix is not None:
                is_safe = violation.fix.applicability == "safe"
                yield {
                    "title": violation.fix.title + ("" if is_safe else " (unsafe)"),
                    "kind": _QUICK_FIX,
                    "diagnostics": shown,
                    "isPreferred": is_safe,
                    "edit": self._edit(cell, violation.fix.edits),
                }
            silenced = suppress.add(buffer.seen, [violation], newline=buffer.newline)
            if silenced:
                yield {
                    "title": f"Silence {violation.code} on this line",
                    "kind": _QUICK_FIX,
                    "diagnostics": shown,
                    "edit": self._edit(cell, silenced),
                }

    def fix_all(self, fixed: bytes) -> Json | None:
        """Return the action that makes the document what it is after all fixes; None if it is.

        Args:
          fixed: the document's content after all fixes.
        """
        if fixed == self.document.content:
            return None
        texts = self.document.texts_in(fixed)
        edits = {
            cell: part.buffer.edits_to(texts[cell]) for cell, part in self.document.parts.items()
        }
        changed = [self._edit(cell, found) for cell, found in edits.items() if found]
        return {
            "title": "Make all fixes of jaxresid",
            "kind": FIX_ALL,
            "edit": {"documentChanges": [c for edit in changed for c in edit["documentChanges"]]},
        }

    def _edit(self, cell: int | None, edits: Sequence[Edit]) -> Json:
        """Return edits of one text, which hold for the version that was linted alone."""
        part = self.document.parts[cell]
        where = {"uri": part.uri, "version": part.buffer.version}
        found = edits_at(self, str(self.document.path), cell, edits)
        return {"documentChanges": [{"textDocument": where, "edits": found}]}

    def hover(self, cell: int | None, line: int, character: int, *, markdown: bool) -> Json | None:
        """Return the pages of the rules that found something at a position; None if none did."""
        from jaxresid.linter.rules import KNOWN, rule
        from jaxresid.render.lint.explain import explain, explain_in_markdown
        from jaxresid.render.lint.formats.lsp import range_at

        at = (line, character)
        pages: dict[str, str] = {}
        where: list[Json] = []
        for violation in self._of(cell):
            spot = range_at(self, violation.path, violation.cell, violation.span)
            start, end = (tuple(spot[key].values()) for key in ("start", "end"))
            if start <= at <= end and violation.code in KNOWN:
                info = rule(KNOWN[violation.code]).info()
                page = explain_in_markdown(info) if markdown else explain(info, "text")
                pages[violation.code] = page
                where.append(spot)
        if not pages:
            return None
        kind = "markdown" if markdown else "plaintext"
        between = BETWEEN if markdown else "\n"
        return {
            "contents": {"kind": kind, "value": between.join(pages.values())},
            "range": where[0],
        }


def without_versions(edit: Json) -> Json:
    """Return an edit for clients that know no versions of documents."""
    changes = edit["documentChanges"]
    return {"changes": {change["textDocument"]["uri"]: change["edits"] for change in changes}}


def is_asked_for(kind: str, only: Sequence[str] | None) -> bool:
    """Return whether an action of a kind is among those that a client asks for."""
    return only is None or any(kind == o or kind.startswith(f"{o}.") for o in only)


def _saved(path: str) -> Buffer | None:
    """Return the text of a file that is not open; None where it cannot be read."""
    from jaxresid.linter.text.source import SourceText, UndecodableError

    try:
        return Buffer(SourceText.decode(Path(path).read_bytes(), path).text, 0)
    except (OSError, UndecodableError):
        return None
