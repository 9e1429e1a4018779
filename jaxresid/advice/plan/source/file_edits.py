"""Gather the edits of the files that a plan changes, place by place, and make them at once."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxresid.advice.plan.source.libraries import by_hand, library_of
from jaxresid.advice.plan.source.policy_text import policy_text, string_text
from jaxresid.base.violations import Edit, Violation
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.linter.fixes.imports import Imports
from jaxresid.linter.resolve.facts import Facts
from jaxresid.linter.run.links import way_out
from jaxresid.linter.text.document import Document, read
from jaxresid.linter.text.source import SourceText
from jaxresid.linter.text.syntax import UnparsableError, parse

# A notebook, and the files that its cells are in by their frames and as they are shown.
_CELL = re.compile(r"\.ipynb$|ipykernel|ipython|\bIn\[\d+\]$")


class UnwritableError(Exception):
    """A part of a plan that is left to the user: the place, and what to do there by hand.

    All that finds or changes source here may raise it.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")


@dataclass(frozen=True)
class Wrap:
    """Text to put before and after a stretch of source, given by offsets."""

    start: int
    end: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class FileEdit:
    """A file before and after its edits."""

    path: Path
    display_path: str
    old: bytes
    new: bytes


@dataclass(eq=False)
class FileRewrite:
    """One file and what changes in it.

    Attributes:
      wraps: The texts to put around stretches of source; of those of one stretch the outer one
        first.
    """

    path: Path
    display_path: str
    old: bytes
    document: Document
    facts: Facts
    imports: Imports
    wraps: list[Wrap] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)

    @property
    def source(self) -> SourceText:
        """The source text before the edits."""
        return self.document.source

    @property
    def newline(self) -> str:
        """The end of the file's lines."""
        return "\r\n" if "\r\n" in self.source.text else "\n"

    @property
    def quote(self) -> str:
        """The quotes that the file uses more."""
        text = self.source.text
        return "'" if text.count("'") > text.count('"') else '"'

    def indent(self, row: int) -> str:
        """Return the white space that a line begins with."""
        line = self.source.lines[row - 1]
        return line[: len(line) - len(line.lstrip())]

    def where(self, row: int) -> str:
        """Return a line of the file as text: `model.py:42`."""
        return f"{self.display_path}:{row}"

    def wrap(self, node: ast.expr, before: str, after: str) -> None:
        """Put text around an expression."""
        span = self.source.span(node)
        wrap = Wrap(self.source.start(span), self.source.end(span), before, after)
        if wrap not in self.wraps:
            self.wraps.append(wrap)

    def edit(self, edit: Edit) -> None:
        """Add an edit, unless it is there already."""
        if edit not in self.edits:
            self.edits.append(edit)

    def replace(self, node: ast.expr, text: str) -> None:
        """Put text in the place of an expression."""
        self.edit(Edit(self.source.span(node), text))

    def text(self, node: ast.expr) -> str:
        """Return an expression as written."""
        return self.source.segment(self.source.span(node))

    def spelling(
        self, qualname: str, imported: str, at: ast.expr | ast.stmt, also: Sequence[str] = ()
    ) -> str:
        """Return how to write something of another module at a place, importing it where needed.

        See `Imports.spelling`.
        """
        name = self.imports.spelling(qualname, imported, at, also)
        if name is None:
            raise UnwritableError(
                self.where(at.lineno), f"cannot import {imported} here; import and use it by hand"
            )
        return name

    def policy(self, policy: str | None, at: ast.expr | ast.stmt) -> str | None:
        """Return a policy as code; None for no policy."""
        if policy is None:
            return None
        also = ("jax.ad_checkpoint.checkpoint_policies",)
        prefix = self.spelling("jax.checkpoint_policies", "jax", at, also)
        text = policy_text(policy, prefix, self.quote)
        if text is None:
            raise UnwritableError(
                self.where(at.lineno),
                f"the policy {policy} is not in jax.checkpoint_policies; write it by hand",
            )
        return text

    def string(self, value: str) -> str:
        """Return a string as code, in the file's quotes where they are possible."""
        return string_text(value, self.quote)

    def new(self) -> bytes:
        """Return the content of the file with its edits made."""
        if not (self.wraps or self.edits):
            return self.old
        source = self.source
        # What ends at an offset comes before what is inserted there, that before what begins
        # there; of several that end, the innermost first, of several that begin, the outermost.
        pieces: list[tuple[int, int, tuple[int, int], str]] = []
        for n, wrap in enumerate(self.wraps):
            pieces.append((wrap.start, 2, (-wrap.end, n), wrap.before))
            pieces.append((wrap.end, 0, (-wrap.start, -n), wrap.after))
        replaced = []
        for n, edit in enumerate([*self.imports.edits(), *self.edits]):
            if edit.span.row == edit.span.end_row and edit.span.column == edit.span.end_column:
                pieces.append((source.start(edit.span), 1, (n, 0), edit.text))
            else:
                replaced.append(edit)
        inserts: dict[int, str] = {}
        for at, _, _, text in sorted(pieces):
            inserts[at] = inserts.get(at, "") + text
        inserted = [Edit(source.between(at, at), text) for at, text in inserts.items()]
        try:
            new = self.document.edited([*inserted, *replaced])
            after = read(new, self.display_path)
            if isinstance(after, Violation):
                raise ValueError(after.message)
            parse(after.source)
        except ValueError as e:
            raise UnwritableError(
                self.display_path, f"the edits conflict ({e}); make them by hand"
            ) from e
        return new


class FileRewrites:
    """The user's files that a plan may change, each read once."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._files: dict[str, FileRewrite] = {}

    def at(self, file: str, row: int) -> FileRewrite:
        """Return the file of a traced location."""
        path = self.path(file)
        # One file, whatever links lead to it.
        key = os.path.realpath(path)
        rewrite = self._files.get(key)
        if rewrite is None:
            rewrite = self._files[key] = self._read(path, f"{file}:{row}")
        return rewrite

    def path(self, file: str) -> str:
        """Return the absolute path of a traced location's file."""
        return os.path.normpath(os.path.join(self._frames.cwd, file))

    def changed(self) -> tuple[FileRewrite, ...]:
        """Return the files that have edits."""
        return tuple(f for f in self._files.values() if f.wraps or f.edits)

    def is_writable(self, path: str) -> bool:
        """Return whether a file is source of the user's own, in no installed package."""
        installed = {"site-packages", "dist-packages"} & set(Path(path).parts)
        return not installed and self._frames.kind(path, "") == "user"

    def modules(self) -> tuple[str, ...]:
        """Return the files of the user's modules that are loaded."""
        paths = (getattr(m, "__file__", None) for m in list(sys.modules.values()))
        return tuple(
            dict.fromkeys(
                p for p in paths if isinstance(p, str) and p.endswith(".py") and self.is_writable(p)
            )
        )

    def _read(self, path: str, where: str) -> FileRewrite:
        if (
            path.endswith(".ipynb")
            or "ipykernel" in path
            or "ipython" in path
            or _CELL.search(path)
        ):
            raise UnwritableError(where, "notebooks are not edited; edit the cell by hand")
        if os.path.basename(path).startswith("<"):
            raise UnwritableError(where, "this code does not come from a file; edit it by hand")
        if not self.is_writable(path):
            library = library_of(path)
            hint = f"; {by_hand(library)}" if library else ""
            raise UnwritableError(where, f"this is library code, which is not edited{hint}")
        if link := way_out(Path(path)):
            reason = f"the link {link} leads out of the project, where nothing is edited"
            raise UnwritableError(where, reason)
        shown = path.removeprefix(self._frames.cwd)
        try:
            raw = Path(path).read_bytes()
        except OSError as e:
            raise UnwritableError(where, f"cannot be read: {e.strerror or e}") from e
        return self._parsed(path, shown, raw, where)

    def again(self, file: FileRewrite, content: bytes) -> FileRewrite:
        """Return a file as it is with other content, to be edited further."""
        return self._parsed(str(file.path), file.display_path, content, file.display_path)

    def _parsed(self, path: str, shown: str, raw: bytes, where: str) -> FileRewrite:
        document = read(raw, shown)
        if isinstance(document, Violation):
            raise UnwritableError(where, f"cannot be read: {document.message}")
        name, is_package = _module(path)
        try:
            tree = parse(document.source)
            facts = Facts(document.source, tree, module=name, is_package=is_package)
        except (UnparsableError, RecursionError) as e:
            raise UnwritableError(where, f"does not parse: {e}") from e
        return FileRewrite(Path(path), shown, raw, document, facts, Imports(facts))


def _module(path: str) -> tuple[str, bool]:
    """Return the dotted name that a file is loaded under, and whether it is a package.

    The name is needed for its relative imports.
    """
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == path and name != "__main__":
            return name, hasattr(module, "__path__")
    return "", os.path.basename(path) == "__init__.py"
