"""Folders of a user's project on `sys.path`, whose modules only the project itself imports.

A `queue.py` or a `click.py` beside the target is meant for the target. jaxresid, JAX and the
standard library import what they would import without the project.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType

_MACHINERY = os.path.join(os.path.dirname(os.__file__), "importlib") + os.sep


class _OthersFirst:
    """Finds what code outside the project imports outside the project, if it is there."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.targets: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a top-level module is outside the project; None for imports of its own."""
        if path is not None or name in self.targets or self._is_ours(sys._getframe(1)):
            return None
        others = [entry for entry in sys.path if entry not in self.folders]
        for finder in sys.meta_path:
            if finder is PathFinder:
                spec = PathFinder.find_spec(name, others, target)
            elif finder is self:
                continue
            else:
                spec = finder.find_spec(name, None, target)
            if spec is not None:
                return spec
        return None

    def _is_ours(self, frame: FrameType | None) -> bool:
        """Return whether a file of the project imports, and of no environment inside it."""
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith(("<frozen importlib", _MACHINERY)):
                break
            frame = frame.f_back
        if frame is None:
            return False
        file = str(frame.f_globals.get("__file__") or frame.f_code.co_filename)
        above = [
            entry for entry in sys.path if entry and file.startswith(entry.rstrip(os.sep) + os.sep)
        ]
        return max(above, key=len, default=None) in self.folders


_finder = _OthersFirst()


def add_project_folder(folder: str) -> None:
    """Put a folder of the project first on `sys.path`, where it is not on it yet."""
    if folder in sys.path:
        return
    sys.path.insert(0, folder)
    _finder.folders.append(folder)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def name_target(module: str) -> None:
    """Let a module that the user names come from the project, whoever imports it."""
    _finder.targets.add(module.partition(".")[0])


def without_project() -> list[str]:
    """Return `sys.path` without the folders of the project."""
    return [entry for entry in sys.path if entry not in _finder.folders]
