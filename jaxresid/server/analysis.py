"""Lint and fix documents as they are in the editor: what `jaxresid lint` says of the same text.

A file of the workspace is seen with its project, unsaved files included. Any other is linted on its
own: neither its neighbours nor their configuration are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxresid.linter.run.discover import is_excluded
from jaxresid.linter.run.files import LintRun
from jaxresid.settings.config import Options, load

if TYPE_CHECKING:
    from jaxresid.violations import Linted


class Analysis:
    """Lints documents; remembers which files projects have, and their configuration.

    Args:
      folders: the folders of the workspace.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)
        self.forget()

    def forget(self) -> None:
        """Look again at which files there are, and at the configuration, when they are needed."""
        isolated = load(Path.cwd(), Options(), isolated=True)
        self._run = LintRun(isolated, nearest=Options(), folders=self.folders)
        self._excluded: dict[Path, bool] = {}

    def is_excluded(self, path: Path) -> bool:
        """Return whether the configuration leaves a file out.

        Raises:
          ConfigError: The configuration is not understood.
        """
        if self._run.is_alone(path):
            return False
        if path not in self._excluded:
            self._excluded[path] = is_excluded(str(path), self._run.config_in(path.parent))
        return self._excluded[path]

    def lint(self, path: Path, open_files: Mapping[Path, bytes]) -> Linted:
        """Lint one of the open files.

        Args:
          path: the file.
          open_files: the contents of all open files.

        Raises:
          ConfigError: The configuration is not understood.
        """
        from jaxresid.violations import Linted

        if self.is_excluded(path):
            return Linted(str(path), ())
        run = self._run.replacing(dict(open_files))
        return run.content(open_files[path], str(path), path)

    def fixed(self, path: Path, open_files: Mapping[Path, bytes]) -> bytes:
        """Return one of the open files after all fixes that `jaxresid lint --fix` would make.

        Args:
          path: the file.
          open_files: the contents of all open files.

        Raises:
          ConfigError: The configuration is not understood.
        """
        if self.is_excluded(path):
            return open_files[path]
        run = self._run.replacing(dict(open_files))
        return run.fix_content(open_files[path], str(path), path).raw
