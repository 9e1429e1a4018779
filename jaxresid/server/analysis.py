"""Lint and fix documents as they are in the editor: what `jaxresid lint` says of the same text.

A file of the workspace is seen with its project, unsaved files included. Any other is linted on its
own: neither its neighbours nor their configuration are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jaxresid.linter.run.discover import is_excluded
from jaxresid.linter.run.files import LintRun
from jaxresid.linter.run.workers import within_limit
from jaxresid.settings.config import Options, load

if TYPE_CHECKING:
    from jaxresid.base.violations import Linted

_T = TypeVar("_T")


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
        from jaxresid.base.violations import Linted
        from jaxresid.linter.run.engine import over_limit

        if self.is_excluded(path):
            return Linted(str(path), ())
        run = self._replacing(path, open_files)
        work = partial(run.content, open_files[path], str(path), path)
        return self._within_limit(run, path, work) or over_limit(str(path))

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
        run = self._replacing(path, open_files)
        work = partial(run.fix_content, open_files[path], str(path), path)
        fixed = self._within_limit(run, path, work)
        return open_files[path] if fixed is None else fixed.raw

    def _replacing(self, path: Path, open_files: Mapping[Path, bytes]) -> LintRun:
        empty = dict.fromkeys(self._run.over_limit_files - {path}, b"")
        return self._run.replacing({**open_files, **empty})

    def _within_limit(self, run: LintRun, path: Path, work: Callable[[], _T]) -> _T | None:
        """Return what work with a run returns; None, and forget, where a file takes too long."""
        result = within_limit(run, path, work)
        if run.over_limit_files != self._run.over_limit_files:
            self.forget()
        # This one may have changed, and is tried again where it is asked for.
        done = frozenset() if result is None else {path}
        self._run.over_limit_files = run.over_limit_files - done
        return result
