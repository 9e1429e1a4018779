"""The linter: it finds violations in source without jax and without running what it lints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxresid.base.violations import Linted, Violation
    from jaxresid.settings.config import Config

__all__ = ["fix_source", "lint_paths", "lint_source"]


def lint_source(
    source: str | bytes, path: str = "-", *, config: Config | None = None
) -> tuple[Violation, ...]:
    """Lint source as if it were the content of `path`.

    Cross-file rules look at the project that `path` would be in, if it exists.

    Args:
      source: Python, or a notebook's JSON where `path` ends in `.ipynb`.
      path: the path that the source is linted as; `-` for none.
      config: None for the nearest `[tool.jaxresid]` above `path`, as on the command line.
    """
    from jaxresid.linter.run.files import LintRun

    raw = source.encode() if isinstance(source, str) else source
    absolute = _absolute(path)
    lint = LintRun(config or _config(absolute), overlay={absolute: raw})
    return lint.content(raw, path, absolute).violations


def fix_source(
    source: str,
    path: str = "-",
    *,
    unsafe: bool = False,
    config: Config | None = None,
) -> str:
    """Return source with its fixes made: the safe ones, or all of them.

    Args:
      source: Python, or a notebook's JSON where `path` ends in `.ipynb`.
      path: the path that the source is linted as; `-` for none.
      unsafe: also make the fixes that may change values, memory or compute.
      config: None for the nearest `[tool.jaxresid]` above `path`, as on the command line.
    """
    from dataclasses import replace

    from jaxresid.linter.run.files import LintRun

    absolute = _absolute(path)
    config = config or _config(absolute)
    lint = LintRun(replace(config, unsafe_fixes=unsafe or config.unsafe_fixes))
    return lint.fix_content(source.encode(), path, absolute).raw.decode()


def lint_paths(
    paths: Sequence[str | Path],
    *,
    config: Config | None = None,
    jobs: int | None = None,
) -> tuple[Linted, ...]:
    """Lint files and directories.

    Args:
      paths: the files and directories.
      config: None for the `[tool.jaxresid]` nearest to each file.
      jobs: number of processes; None for one per processor.

    Returns:
      One entry per file with findings, sorted by path.

    Raises:
      JaxresidError: A path does not exist, or the configuration is wrong.
    """
    from jaxresid.linter.run.files import LintRun
    from jaxresid.settings.config import Options

    run = LintRun(
        config or _config(Path()),
        nearest=None if config else Options(),
        reports_configuration=True,
    )
    return run.run([str(p) for p in paths], jobs=jobs)


def _config(start: Path) -> Config:
    from jaxresid.settings.config import Options, load

    return load(start, Options())


def _absolute(path: str) -> Path:
    return Path("<stdin>").absolute() if path == "-" else Path(path).absolute()
