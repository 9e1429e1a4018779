"""The named targets of projects."""

from __future__ import annotations

from pathlib import Path

from jaxresid.settings.named_target import NamedTarget
from jaxresid.settings.project import project
from jaxresid.settings.toml_values import ConfigError


class NamedTargets:
    """The targets that configuration files name, read again where they changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, tuple[NamedTarget, ...] | None]] = {}

    def of(self, folder: Path) -> tuple[NamedTarget, ...] | None:
        """Return the targets of a folder's configuration file; None where it is not understood."""
        file = folder / "pyproject.toml"
        try:
            changed = file.stat().st_mtime_ns
        except OSError:
            return ()
        known = self._known.get(folder)
        if known is None or known[0] != changed:
            try:
                targets: tuple[NamedTarget, ...] | None = project(folder, config_file=file).targets
            except ConfigError:
                targets = None
            known = self._known[folder] = changed, targets
        return known[1]
