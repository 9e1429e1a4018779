"""Find what a configuration says about tracing: its place and its named targets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxresid.settings.config import parse
from jaxresid.settings.named_target import NamedTarget
from jaxresid.settings.pyproject import find
from jaxresid.settings.toml_values import location


@dataclass(frozen=True, slots=True)
class Project:
    """The part of a configuration that concerns the commands that trace."""

    file: Path | None = None
    on: str | None = None
    targets: tuple[NamedTarget, ...] = ()
    text: str = ""

    def location(self, *keys: str) -> str:
        """Return where a key of [tool.jaxresid] stands, `pyproject.toml:3`."""
        return "" if self.file is None else location(self.file, self.text, *keys)


def project(start: Path, *, config_file: Path | None = None, isolated: bool = False) -> Project:
    """Return what the configuration for what is at or under a directory says about tracing.

    Raises:
      ConfigError: A file cannot be read or understood.
    """
    if isolated:
        return Project()
    file, text = find(start, config_file)
    if file is None:
        return Project()
    options = parse(text, file)
    return Project(file, options.on, options.targets or (), text)
