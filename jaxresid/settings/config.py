"""Read `[tool.jaxresid]` of pyproject.toml and the command line into one frozen value.

Keys and their meanings are ruff's. The nearest pyproject.toml upwards that has the table is the
whole configuration; nothing is merged from files further up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.base.text.nearest import did_you_mean
from jaxresid.base.text.short_repr import Shown
from jaxresid.settings.globs import Glob, excluder
from jaxresid.settings.keys import OUTPUT_FORMATS, check_glob, no_format, value_of
from jaxresid.settings.named_target import NamedTarget
from jaxresid.settings.pyproject import find, toml_tables
from jaxresid.settings.requirements.versions import Version
from jaxresid.settings.toml_values import ConfigError, ConfigFileError, line_of, table_in

if TYPE_CHECKING:
    from jaxresid.settings.requirements.in_use import Directory, JaxInUse

# ruff's list, and what holds other people's code or no code.
DEFAULT_EXCLUDE = (
    ".bzr",
    ".direnv",
    ".eggs",
    ".git",
    ".git-rewrite",
    ".hg",
    ".ipynb_checkpoints",
    ".jaxresid_cache",
    ".mypy_cache",
    ".nox",
    ".pants.d",
    ".pyenv",
    ".pytest_cache",
    ".pytype",
    ".ruff_cache",
    ".svn",
    ".tox",
    ".venv",
    ".vscode",
    "__pycache__",
    "__pypackages__",
    "_build",
    "buck-out",
    "build",
    "dist",
    "node_modules",
    "site-packages",
    "venv",
)


class Options(NamedTuple):
    """The settings of a configuration file or of the command line; None for what is not set.

    Attributes:
      extend_ignore: the same as `ignore`, as in ruff.
      per_file_ignores: (glob, selectors) pairs; a glob that starts with `!` is negated.
      exclude, extend_exclude: globs.
      on: the place that the commands that trace ask about; `settings.project` reads it.
      targets: the named targets of these commands.
    """

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] | None = None
    extend_ignore: tuple[str, ...] | None = None
    fixable: tuple[str, ...] | None = None
    unfixable: tuple[str, ...] | None = None
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] | None = None
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] | None = None
    force_exclude: bool | None = None
    respect_gitignore: bool | None = None
    target_jax: Version | None = None
    output_format: str | None = None
    unsafe_fixes: bool | None = None
    fix: bool | None = None
    on: str | None = None
    targets: tuple[NamedTarget, ...] | None = None


class Selection(NamedTuple):
    """The selectors of one source of settings; later sources override earlier ones, as in ruff."""

    select: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fixable: tuple[str, ...] | None = None
    unfixable: tuple[str, ...] = ()


class PerFileIgnore(NamedTuple):
    """Selectors that are ignored where `glob` matches, or where it does not if `negated`.

    `is_of_file` is whether the configuration file has it, and not the command line.
    """

    glob: Glob
    negated: bool
    selectors: tuple[str, ...]
    is_of_file: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Config(Shown):
    """The complete configuration.

    Attributes:
      root: the directory of the configuration file; the working directory if there is none, or if
        it was named by the user, as in ruff.
      file: the configuration file.
      selections: the file's, then the command line's.
      per_file_ignores: the rules not to run in some files.
      exclude: globs of `exclude` (or the default ones) and of `extend-exclude`.
      force_exclude: whether excluded files are left out even where the user names them.
      respect_gitignore: whether what `.gitignore` files name is left out.
      target_jax: the newest version of JAX that the code must run on, (0, 10) for 0.10; None for
        no upper bound, that is, the newest there is. Unless set, what the project's files say.
      target_jax_file: the file that says so; None where it is set, or where there is none.
      output_format: the output format.
      unsafe_fixes: whether fixes that may change values, memory or compute are made as well.
      fix: whether fixes are made.
      text: the text of `file`, to find the lines of errors.
    """

    root: Path
    file: Path | None = None
    selections: tuple[Selection, ...] = ()
    per_file_ignores: tuple[PerFileIgnore, ...] = ()
    exclude: tuple[Glob, ...] = ()
    force_exclude: bool = False
    respect_gitignore: bool = True
    target_jax: Version | None = None
    target_jax_file: Path | None = field(default=None, compare=False)
    output_format: str = "text"
    unsafe_fixes: bool = False
    fix: bool = False
    text: str = field(default="", repr=False, compare=False)

    def enabled(self, code: str, name: str, default_on: bool) -> bool:
        """Return whether a rule is on: the longest selector of it wins, `ignore` wins ties."""
        layers = ((s.select, s.extend_select, s.ignore) for s in self.selections)
        return _resolve(default_on, layers, code, name)

    def fix_allowed(self, code: str, name: str) -> bool:
        """Return whether `fixable` and `unfixable` allow a rule's fixes to be made."""
        layers = ((s.fixable, (), s.unfixable) for s in self.selections)
        return _resolve(True, layers, code, name)

    def ignored_in(self, path: str | os.PathLike[str]) -> tuple[str, ...]:
        """Return the selectors that `per-file-ignores` ignores in a file; see `matches`."""
        if not self.per_file_ignores:
            return ()
        absolute = os.path.abspath(path)
        return tuple(
            selector
            for entry in self.per_file_ignores
            if entry.glob.matcher()(absolute) != entry.negated
            for selector in entry.selectors
        )

    def excluder(self) -> Callable[[str, str], bool]:
        """Return a function of an absolute path and its name: whether `exclude` names it."""
        return excluder(self.exclude)

    def validate(self, rules: Mapping[str, str]) -> None:
        """Raise ConfigError where a selector stands for none of the rules, code -> name."""
        for from_file, key, selector in self._selectors():
            if any(matches(selector, code, name) for code, name in rules.items()):
                continue
            words = ["ALL", *rules, *rules.values(), *{code[:4] for code in rules}]
            guess = did_you_mean(selector, words) or "; `jaxresid rules` lists them"
            if self.file is not None and from_file:
                line = line_of(self.text, key, within=selector)
                reason = f"unknown rule `{selector}` in `{key}`{guess}"
                raise ConfigFileError(self.file, reason, line)
            raise ConfigError(f"unknown rule `{selector}` in `--{key}`{guess}")

    def _selectors(self) -> Iterator[tuple[bool, str, str]]:
        """Yield (whether the file has it, key, selector) for every selector."""
        for index, selection in enumerate(self.selections):
            from_file = self.file is not None and index == 0
            for key in ("select", "extend-select", "ignore", "fixable", "unfixable"):
                for selector in getattr(selection, key.replace("-", "_")) or ():
                    yield from_file, key, selector
        for entry in self.per_file_ignores:
            for selector in entry.selectors:
                yield entry.is_of_file, "per-file-ignores", selector


def matches(selector: str, code: str, name: str) -> bool:
    """Return whether a selector is `ALL`, a rule's code, a prefix of it (`JXR1`) or its name."""
    return _specificity(selector, code, name) >= 0


def _specificity(selector: str, code: str, name: str) -> int:
    """Return how much of a rule's code a selector names; -1 where it names another."""
    if selector == "ALL":
        return 0
    if selector == name:
        return len(code)
    letters = code.rstrip("0123456789")
    if code.startswith(selector) and len(selector) >= len(letters):
        return len(selector)
    return -1


_Layer = tuple[tuple[str, ...] | None, tuple[str, ...], tuple[str, ...]]


def _resolve(state: bool, layers: Iterable[_Layer], code: str, name: str) -> bool:
    """Return whether one rule is on after applying selectors layer by layer.

    Each layer is (replacing, adding, removing).
    """
    carried: tuple[str, ...] = ()
    for replacing, adding, removing in layers:
        on = _strongest((*(replacing or ()), *adding), code, name)
        off = _strongest((*removing, *carried), code, name)
        if replacing is not None or on >= 0 or off >= 0:
            state = on > off
        # As in ruff, a layer that selects nothing hands its ignores on to the next.
        carried = removing if replacing == () and not adding else ()
    return state


def _strongest(selectors: Sequence[str], code: str, name: str) -> int:
    return max((_specificity(selector, code, name) for selector in selectors), default=-1)


def load(
    start: Path,
    options: Options,
    *,
    config_file: Path | None = None,
    isolated: bool = False,
    cwd: Path | None = None,
    known: dict[Path, Directory] | None = None,
) -> Config:
    """Return the configuration for what is at or under `start`, overridden by `options`.

    Args:
      start: a file or directory; the configuration file is searched there and upwards.
      config_file: read this file and search for none; its globs are relative to `cwd`.
      cwd: what `options` are relative to; the working directory if None.
      known: what was read of directories about jax before, for runs that load many configurations.

    Raises:
      ConfigError: A file cannot be read or understood.
    """
    cwd = Path(os.path.abspath(cwd or "."))
    if isolated:
        return combine(Options(), options, root=cwd, cwd=cwd)
    file, text = find(start, config_file)
    table = parse(text, file) if file else Options()
    in_use = None
    if not (options.target_jax or table.target_jax):
        from jaxresid.settings.requirements.in_use import jax_in_use

        in_use = _named_in(config_file, text) or jax_in_use(start, known)
    return combine(
        table,
        options,
        root=cwd if config_file or not file else Path(os.path.abspath(file.parent)),
        cwd=cwd,
        file=file,
        text=text,
        in_use=in_use,
    )


def _named_in(config_file: Path | None, text: str) -> JaxInUse | None:
    """Return the newest jax that a configuration file admits which the user named, if it asks."""
    if config_file is None:
        return None
    from jaxresid.settings.requirements.in_use import JaxInUse, jax_requirements
    from jaxresid.settings.requirements.versions import newest_admitted

    requirements = jax_requirements(toml_tables(text, config_file))
    version = newest_admitted(requirements)
    return JaxInUse(version, config_file if version else None) if requirements else None


def combine(
    table: Options,
    options: Options,
    *,
    root: Path,
    cwd: Path,
    file: Path | None = None,
    text: str = "",
    in_use: JaxInUse | None = None,
) -> Config:
    """Combine the options of a file and of the command line, which win, into one configuration.

    The file's globs are relative to `root`, those of the command line to `cwd`.

    Raises:
      ConfigError: A glob or the output format is not valid.
    """
    exclude = _globs(options.exclude, cwd, "--exclude")
    if exclude is None:
        exclude = _globs(table.exclude, root, "exclude")
    if exclude is None:
        exclude = tuple(Glob(name, str(root)) for name in DEFAULT_EXCLUDE)
    more = _globs(table.extend_exclude, root, "extend-exclude") or ()
    more += _globs(options.extend_exclude, cwd, "--extend-exclude") or ()
    if options.per_file_ignores is not None:
        ignores = _per_file_ignores(options.per_file_ignores, cwd, "--per-file-ignores")
    else:
        written = _per_file_ignores(table.per_file_ignores or (), root, "per-file-ignores")
        ignores = tuple(entry._replace(is_of_file=True) for entry in written)
    overriding = {key: value for key, value in options._asdict().items() if value is not None}
    values = table._replace(**overriding)
    output_format = values.output_format or "text"
    if output_format not in OUTPUT_FORMATS:
        raise ConfigError(no_format(output_format))
    return Config(
        root=root,
        file=file,
        selections=(*((_selection(table),) if file else ()), _selection(options)),
        per_file_ignores=ignores,
        exclude=exclude + more,
        force_exclude=bool(values.force_exclude),
        respect_gitignore=values.respect_gitignore is not False,
        target_jax=values.target_jax or (in_use.version if in_use else None),
        target_jax_file=in_use.file if in_use else None,
        output_format=output_format,
        unsafe_fixes=bool(values.unsafe_fixes),
        fix=bool(values.fix),
        text=text,
    )


def _selection(options: Options) -> Selection:
    return Selection(
        select=options.select,
        extend_select=options.extend_select or (),
        ignore=(options.ignore or ()) + (options.extend_ignore or ()),
        fixable=options.fixable,
        unfixable=options.unfixable or (),
    )


def _globs(patterns: tuple[str, ...] | None, base: Path, key: str) -> tuple[Glob, ...] | None:
    if patterns is None:
        return None
    return tuple(Glob(check_glob(pattern, key), str(base)) for pattern in patterns)


def _per_file_ignores(
    pairs: tuple[tuple[str, tuple[str, ...]], ...], base: Path, key: str
) -> tuple[PerFileIgnore, ...]:
    return tuple(
        PerFileIgnore(
            Glob(check_glob(pattern.removeprefix("!"), key), str(base)),
            pattern.startswith("!"),
            selectors,
        )
        for pattern, selectors in pairs
    )


def parse(text: str, file: Path = Path("pyproject.toml")) -> Options:
    """Return the options that `[tool.jaxresid]` sets in the text of a pyproject.toml.

    Raises:
      ConfigError: The text is not understood; the message names `file`, the line and what to write.
    """
    table = table_in(toml_tables(text, file), "tool").get("jaxresid", {})
    if not isinstance(table, dict):
        raise ConfigFileError(file, "tool.jaxresid is not a table; write [tool.jaxresid]")
    values: dict[str, object] = {}
    for key, value in table.items():
        try:
            values[key.replace("-", "_")] = value_of(key, value)
        except ConfigError as error:
            raise ConfigFileError(file, str(error), line_of(text, key, *error.keys)) from None
    return Options(**values)  # type: ignore[arg-type]
