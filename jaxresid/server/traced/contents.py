"""What files hold now: in the editor where they are open, else on the disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from jaxresid.base import regular_files
from jaxresid.serialization.source_digests import SourceDigest, digest_of, line_digests
from jaxresid.server.documents import Document
from jaxresid.server.traced.line_map import line_map

# Lines whose digests are remembered between keystrokes.
_MOST_LINES = 100_000


class Contents:
    """Digests of files as they are now, each computed once.

    Args:
      open_document: returns the document of a file that is open; None for others.
    """

    def __init__(self, open_document: Callable[[Path], Document | None]) -> None:
        self._open_document = open_document
        self._open: dict[str, tuple[bytes, str]] = {}
        self._saved: dict[str, tuple[tuple[int, int], str]] = {}
        self._lines: dict[bytes, str] = {}
        self._maps: dict[tuple[str, str], tuple[str, Mapping[int, int]]] = {}

    def digest(self, path: str) -> str | None:
        """Return the digest of a file; None where it cannot be read."""
        document = self._open_document(Path(path))
        if document is not None:
            known = self._open.get(path)
            if known is None or known[0] is not document.content:
                known = self._open[path] = document.content, digest_of(document.content)
            return known[1]
        self._open.pop(path, None)
        try:
            stat = Path(path).stat()
            state = stat.st_mtime_ns, stat.st_size
            saved = self._saved.get(path)
            if saved is None or saved[0] != state:
                content = regular_files.read(Path(path).resolve())
                saved = self._saved[path] = state, digest_of(content)
        except (OSError, ValueError):
            return None
        return saved[1]

    def rows(self, document: Document, before: SourceDigest) -> Mapping[int, int]:
        """Return where the lines of an open document went, as `line_map` does.

        Args:
          document: the document as it is now.
          before: the file as it was.
        """
        path, digest = str(document.path), self.digest(str(document.path)) or ""
        known = self._maps.get((path, before.digest))
        if known is None or known[0] != digest:
            if len(self._lines) > _MOST_LINES:
                self._lines.clear()
            now = line_digests(document.content, self._lines)
            lines = now if before.digest == digest else before.lines
            known = self._maps[path, before.digest] = digest, line_map(lines, now)
        return known[1]
