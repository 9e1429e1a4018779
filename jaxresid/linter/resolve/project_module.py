"""A file of a project under its dotted name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ProjectModule(NamedTuple):
    """A file of the project under its dotted name."""

    path: Path
    name: str

    @property
    def is_package(self) -> bool:
        """Return whether the file is an `__init__.py`."""
        return self.path.stem == "__init__"
