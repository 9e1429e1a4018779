"""The kept results of a workspace, as they are on the disk now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxresid.serialization.latest import Kept

_State = tuple[int, int]


class KeptResults:
    """Reads results that are new, and forgets those that are gone.

    `look` may run in another thread than the rest, never twice at once.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[_State, Kept | None]] = {}
        self._all: tuple[Kept, ...] = ()

    @property
    def all(self) -> tuple[Kept, ...]:
        """The results of all projects, the newest first."""
        return self._all

    def last(self, folder: str, target: str, command: str) -> Kept | None:
        """Return the last result of a command for a target of a project; None for none."""
        for kept in self._all:
            head = kept.head
            if (head.folder, head.target, head.command) == (folder, target, command):
                return kept
        return None

    def look(self) -> bool:
        """Read what is new; return whether anything changed."""
        from jaxresid.base.user_cache import is_entry, results_folder

        states: dict[str, _State] = {}
        with suppress(OSError), os.scandir(results_folder()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if is_entry(entry.name):
                        stat = entry.stat(follow_symlinks=False)
                        states[entry.path] = stat.st_mtime_ns, stat.st_size
        changed = [path for path, state in states.items() if self._state(path) != state]
        if not changed and states.keys() == self._known.keys():
            return False
        from jaxresid.serialization.latest import read

        known = {path: found for path, found in self._known.items() if path in states}
        for path in changed:
            known[path] = states[path], read(Path(path))
        self._known = known
        found = [kept for _, kept in known.values() if kept is not None]
        self._all = tuple(sorted(found, key=lambda kept: -kept.head.made))
        return True

    def _state(self, path: str) -> _State | None:
        known = self._known.get(path)
        return None if known is None else known[0]


def in_folders(results: Sequence[Kept], folders: Sequence[Path]) -> tuple[Kept, ...]:
    """Return the results that a source below some folders is in."""
    roots = tuple(f"{os.path.join(folder, '')}" for folder in folders)
    return tuple(kept for kept in results if any(path.startswith(roots) for path in kept.sources))
