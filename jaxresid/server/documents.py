"""Open documents: files of one text, and notebooks, each cell of which is a text of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jaxresid.server.buffers import Buffer, Change


class Part(NamedTuple):
    """A text of a document."""

    uri: str
    buffer: Buffer


class Cell(NamedTuple):
    """A cell of a notebook, code or prose, with the language of its text: `python`."""

    uri: str
    is_code: bool
    language: str


@dataclass(frozen=True)
class Document:
    """A document that the client has open.

    Attributes:
      path: the file; for what was never saved a path where there is none.
      parts: its texts by the number of the cell, from 1; by None where it is no notebook.
      version: the client's number for it; None for a notebook, whose texts have numbers.
      content: what the file would hold if it were saved; for a notebook one with the same cells.
    """

    uri: str
    path: Path
    is_python: bool
    parts: Mapping[int | None, Part]
    version: int | None
    content: bytes = field(repr=False)

    def part(self, uri: str) -> tuple[int | None, Buffer] | None:
        """Return the cell and the text that have a URI; None if none has."""
        return next(((c, part.buffer) for c, part in self.parts.items() if part.uri == uri), None)

    def texts_in(self, content: bytes) -> dict[int | None, str]:
        """Return the texts of its parts in other content of the same document."""
        if None not in self.parts:
            cells = json.loads(content)["cells"]
            return {n: cells[n - 1]["source"] for n in self.parts if n is not None}
        from jaxresid.linter.text.source import SourceText

        return {None: SourceText.decode(content, "").text}


@dataclass(frozen=True)
class TextFile:
    """A file that is open as a text."""

    uri: str
    path: Path
    language: str
    buffer: Buffer

    @cached_property
    def document(self) -> Document:
        """The file as a document."""
        is_python = self.path.suffix in (".py", ".pyi") or (
            self.language == "python" and self.path.suffix != ".ipynb"
        )
        part = Part(self.uri, self.buffer)
        version, content = self.buffer.version, self.buffer.content
        return Document(self.uri, self.path, is_python, {None: part}, version, content)

    def changed(self, uri: str, changes: Iterable[Change], version: int, encoding: str) -> TextFile:
        """Return the file after changes of its text."""
        return replace(self, buffer=self.buffer.changed(changes, version, encoding))


@dataclass(frozen=True)
class NotebookFile:
    """A notebook that is open as such, with the texts of its cells by their URIs."""

    uri: str
    path: Path
    metadata: Mapping[str, Any]
    cells: tuple[Cell, ...]
    buffers: Mapping[str, Buffer]

    @cached_property
    def document(self) -> Document:
        """The notebook as a document."""
        parts: dict[int | None, Part] = {
            number: Part(cell.uri, self.buffers[cell.uri])
            for number, cell in enumerate(self.cells, 1)
            if cell.uri in self.buffers
        }
        cells = [
            {
                "cell_type": "code" if cell.is_code else "markdown",
                "metadata": {"vscode": {"languageId": cell.language}},
                "source": self.buffers[cell.uri].text if cell.uri in self.buffers else "",
            }
            for cell in self.cells
        ]
        # VS Code has the metadata of the file inside of its own.
        metadata = self.metadata.get("metadata", self.metadata)
        whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
        return Document(self.uri, self.path, True, parts, None, json.dumps(whole).encode())

    def changed(
        self, uri: str, changes: Iterable[Change], version: int, encoding: str
    ) -> NotebookFile:
        """Return the notebook after changes of the text of a cell."""
        buffer = self.buffers[uri].changed(changes, version, encoding)
        return replace(self, buffers={**self.buffers, uri: buffer})

    def rearranged(
        self, start: int, ndeleted: int, cells: Iterable[Cell], opened: Mapping[str, Buffer]
    ) -> NotebookFile:
        """Return the notebook with some cells in place of others.

        Args:
          start: the number of cells in front of those that go.
          opened: the texts of those that are new.
        """
        now = (*self.cells[:start], *cells, *self.cells[start + ndeleted :])
        kept = {cell.uri for cell in now}
        buffers = {u: b for u, b in {**self.buffers, **opened}.items() if u in kept}
        return replace(self, cells=now, buffers=buffers)


OpenFile = TextFile | NotebookFile


class OpenFiles:
    """The documents that the client has open, by their URIs and by those of their texts."""

    def __init__(self) -> None:
        self._files: dict[str, OpenFile] = {}

    def __iter__(self) -> Any:
        return iter(self._files)

    def put(self, file: OpenFile) -> None:
        """Open a document, or replace it."""
        self._files[file.uri] = file

    def remove(self, uri: str) -> OpenFile | None:
        """Close a document; return it, None if it was not open."""
        return self._files.pop(uri, None)

    def file(self, uri: str) -> OpenFile | None:
        """Return the document that has a URI or a text with it; None if none has."""
        if uri in self._files:
            return self._files[uri]
        notebooks = (f for f in self._files.values() if isinstance(f, NotebookFile))
        return next((f for f in notebooks if uri in f.buffers), None)

    def contents(self) -> dict[Path, bytes]:
        """Return what all documents hold, by their paths."""
        return {f.path: f.document.content for f in self._files.values()}

    def at(self, path: Path) -> OpenFile | None:
        """Return the document of a file; None if it is not open."""
        return next((f for f in self._files.values() if f.path == path), None)
