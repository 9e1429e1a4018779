"""A kept plan as an edit of the workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxresid.base.errors import InputsError
from jaxresid.linter.text.source import SourceText, UndecodableError
from jaxresid.server.buffers import Buffer
from jaxresid.server.commands.projects import root_of
from jaxresid.server.documents import Document

if TYPE_CHECKING:
    from jaxresid.serialization.latest import Kept

Json = dict[str, Any]


def workspace_edit(
    plan: Kept,
    folders: Sequence[Path],
    open_document: Callable[[Path], Document | None],
    digest: Callable[[str], str | None],
    encoding: str,
) -> Json:
    """Return what a plan changes as edits of documents.

    Args:
      plan: the kept plan.
      folders: the folders of the workspace.
      open_document: returns the document of a file that is open; None for others.
      digest: returns the digest of a file as it is now; None where it cannot be read.
      encoding: what positions count.

    Raises:
      InputsError: A file has changed since, is not in the workspace, or there is nothing to write.
    """
    name = plan.head.target
    changed = [s.path for s in plan.head.sources if digest(s.path) != s.digest]
    changed += [e.path for e in plan.edits if digest(e.path) != e.digest]
    if changed:
        raise InputsError(f"{changed[0]} changed since {name} was planned: plan it again")
    if not plan.edits:
        from jaxresid.render.in_editor import plan_text

        why = plan_text(plan.plan)
        raise InputsError(f"the last plan of {name} has nothing to write: {why}")
    changes = []
    for edit in plan.edits:
        path = Path(edit.path)
        if root_of(path, folders) is None:
            raise InputsError(f"{path} is outside of the workspace: nothing is changed there")
        document = open_document(path)
        buffer = _saved(path) if document is None else document.parts[None].buffer
        uri = path.as_uri() if document is None else document.uri
        version = None if document is None else buffer.version
        edits = [
            {
                "range": {
                    "start": _position(buffer, each.span.row, encoding),
                    "end": _position(buffer, each.span.end_row, encoding),
                },
                "newText": each.text,
            }
            for each in buffer.edits_to(edit.text)
        ]
        changes.append({"textDocument": {"uri": uri, "version": version}, "edits": edits})
    return {"documentChanges": changes}


def _position(buffer: Buffer, row: int, encoding: str) -> Json:
    return {"line": row - 1, "character": buffer.character(row, 0, encoding)}


def _saved(path: Path) -> Buffer:
    try:
        return Buffer(SourceText.decode(path.read_bytes(), str(path)).text, 0)
    except (OSError, UndecodableError) as e:
        raise InputsError(f"cannot read {path}: {e}") from e
