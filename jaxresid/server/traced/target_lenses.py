"""What can be done with the named targets of a document, at the lines that define them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxresid.server.traced.named_targets import NamedTargets, name_in, project_folders

TRACE, PLAN, APPLY_PLAN = "jaxresid.trace", "jaxresid.plan", "jaxresid.applyPlan"


@dataclass(frozen=True, slots=True)
class TargetHere:
    """A named target, the folder of its configuration, and the row that defines it."""

    name: str
    folder: Path
    row: int

    def command(self, name: str, title: str) -> dict[str, Any]:
        """Return a command about it, as the protocol says it."""
        nothing = [None, None] if name == PLAN else []
        arguments = [self.name, *nothing, self.folder.as_uri()]
        return {"title": title, "command": name, "arguments": arguments}


def targets_here(path: Path, lines: Sequence[str], targets: NamedTargets) -> Iterator[TargetHere]:
    """Yield the named targets that a file defines."""
    for folder in project_folders([path]):
        for target in targets.of(folder) or ():
            name = name_in(target, folder, path)
            row = None if name is None else _row(lines, name)
            if row is not None:
                yield TargetHere(target.name, folder, row)


def _row(lines: Sequence[str], name: str) -> int | None:
    """Return the row that defines a name, outermost first; None where none does."""
    named = re.escape(name)
    definition = re.compile(
        rf"(\s*)(?:(?:async\s+)?def|class)\s+{named}\b|()(?:{named})\s*(?::.*)?=[^=]"
    )
    rows = [
        (len(m[1] or ""), n) for n, line in enumerate(lines, 1) if (m := definition.match(line))
    ]
    return min(rows)[1] if rows else None
