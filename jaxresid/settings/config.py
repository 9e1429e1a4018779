"""Read `[tool.jaxresid]` of pyproject.toml and the command line into one frozen value.

Keys and their meanings are ruff's. The nearest pyproject.toml upwards that has the table is the
whole configuration; nothing is merged from files further up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, get_args

from jaxresid.base import regular_files
from jaxresid.base.option_types import OutputFormat
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.base.text.short_repr import Shown
from jaxresid.base.text.wide_encodings import wide_encoding
from jaxresid.settings.globs import Glob, excluder, regex_of
from jaxresid.settings.named_target import NamedTarget, named_targets
from jaxresid.settings.requirements.versions import Version
from jaxresid.settings.toml_values import (
    ConfigError,
    ConfigFileError,
    flag,
    kind_of,
    line_of,
    string,
    string_list,
    table_in,
)

if TYPE_CHECKING:
    from jaxresid.settings.requirements.in_use import Directory, JaxInUse

OUTPUT_FORMATS: tuple[str, ...] = get_args(OutputFormat)

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


KNOWN_KEYS = tuple(name.replace("_", "-") for name in Options._fields)


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
        """Return whether a rule is on.

        The longest selector that names the rule wins; `ignore` wins ties.

        Args:
          code: the rule's code.
          name: the rule's name.
          default_on: whether the rule is on where no selector names it.
        """
        layers = ((s.select, s.extend_select, s.ignore) for s in self.selections)
        return _resolve(default_on, layers, code, name)

    def fix_allowed(self, code: str, name: str) -> bool:
        """Return whether `fixable` and `unfixable` allow a rule's fixes to be made."""
        layers = ((s.fixable, (), s.unfixable) for s in self.selections)
        return _resolve(True, layers, code, name)

    def ignored_in(self, path: str | os.PathLike[str]) -> tuple[str, ...]:
        """Return the selectors that `per-file-ignores` ignores in a file.

        Compare them with a rule by `matches`.
        """
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
        """Return a function that tells whether `exclude` names a path itself.

        The function takes an absolute path and its last component.
        """
        return excluder(self.exclude)

    def validate(self, known: Mapping[str, str]) -> None:
        """Check that every selector stands for a rule.

        Args:
          known: code -> name of all rules.

        Raises:
          ConfigError: A selector stands for no rule.
        """
        for origin, key, selector in self._selectors():
            if not any(matches(selector, code, name) for code, name in known.items()):
                self._refuse_selector(origin, key, selector, known)

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

    def _refuse_selector(
        self, from_file: bool, key: str, selector: str, known: Mapping[str, str]
    ) -> NoReturn:
        words = ["ALL", *known, *known.values(), *{code[:4] for code in known}]
        guess = did_you_mean(selector, words) or "; `jaxresid rules` lists them"
        if self.file is not None and from_file:
            line = line_of(self.text, key, within=selector)
            reason = f"unknown rule `{selector}` in `{key}`{guess}"
            raise ConfigFileError(self.file, reason, line)
        raise ConfigError(f"unknown rule `{selector}` in `--{key}`{guess}")


# Selectors.


def matches(selector: str, code: str, name: str) -> bool:
    """Return whether a selector stands for a rule.

    It does if it is `ALL`, the rule's code, a prefix of the code (`JXR`, `JXR1`) or the rule's
    name.
    """
    return _specificity(selector, code, name) >= 0


def _specificity(selector: str, code: str, name: str) -> int:
    """Return how specific a selector is, -1 if it does not stand for the rule."""
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


def split_selectors(values: Iterable[str]) -> tuple[str, ...]:
    """Return comma-separated selectors as a flat tuple.

    For example, `["JXR1,JXR2", "ALL"]`, as options give them, becomes `("JXR1", "JXR2", "ALL")`.
    """
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(part for part in parts if part)


def parse_per_file_ignores(values: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Parse `tests/*:JXR101,tests/*:JXR102`, as `--per-file-ignores` takes it.

    Returns:
      (glob, selectors) pairs.

    Raises:
      ConfigError: A part is not GLOB:SELECTOR.
    """
    pairs = []
    for part in split_selectors(values):
        pattern, colon, selector = part.rpartition(":")
        if not colon or not pattern.strip() or not selector.strip():
            raise ConfigError(
                f"`--per-file-ignores`: {part!r} is not GLOB:CODE, such as 'tests/*:JXR101'"
            )
        pairs.append((pattern.strip(), (selector.strip(),)))
    return tuple(pairs)


def parse_target_jax(text: str) -> Version:
    """Parse a version of JAX, `0.10` or `0.10.2`, into its major and minor number, (0, 10).

    Raises:
      ConfigError: The text is not a version; the message says what to write.
    """
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", text.strip())
    if match is None:
        raise ConfigError(f'target-jax: {text!r} is not a version of JAX such as "0.10"')
    return int(match[1]), int(match[2])


def _check_glob(pattern: str, key: str) -> str:
    try:
        re.compile(regex_of(pattern))
    except (ValueError, re.error) as error:
        raise ConfigError(f"{key}: {pattern!r} is not a glob: {error}") from None
    return pattern


# The file.


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
      options: what the command line sets.
      config_file: read this file and search for none; its globs are relative to `cwd`.
      isolated: read no file at all.
      cwd: what `options` are relative to; the working directory if None.
      known: what was read of directories about jax before, for runs that load many configurations.

    Raises:
      ConfigError: A file cannot be read or understood.
    """
    cwd = Path(os.path.abspath(cwd or "."))
    if isolated:
        return combine(Options(), options, root=cwd, cwd=cwd)
    found = find(start, config_file)
    file, text = found.file, found.text
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

    requirements = jax_requirements(_toml(text, config_file))
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

    Args:
      table: the options of the file.
      options: the options of the command line.
      root: the directory that the file's globs and paths are relative to.
      cwd: the directory that the command line's globs and paths are relative to.
      file: the configuration file, None if there is none.
      text: the text of `file`.
      in_use: the version to target where neither `table` nor `options` sets one.

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
        ignores = tuple(each._replace(is_of_file=True) for each in written)
    output_format = options.output_format or table.output_format or "text"
    if output_format not in OUTPUT_FORMATS:
        raise ConfigError(_no_format(output_format))
    return Config(
        root=root,
        file=file,
        selections=(*((_selection(table),) if file else ()), _selection(options)),
        per_file_ignores=ignores,
        exclude=exclude + more,
        force_exclude=_first(options.force_exclude, table.force_exclude, False),
        respect_gitignore=_first(options.respect_gitignore, table.respect_gitignore, True),
        target_jax=options.target_jax or table.target_jax or (in_use.version if in_use else None),
        target_jax_file=in_use.file if in_use else None,
        output_format=output_format,
        unsafe_fixes=_first(options.unsafe_fixes, table.unsafe_fixes, False),
        fix=_first(options.fix, table.fix, False),
        text=text,
    )


def _first(*values: bool | None) -> bool:
    return next(value for value in values if value is not None)


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
    return tuple(Glob(_check_glob(pattern, key), str(base)) for pattern in patterns)


def _per_file_ignores(
    pairs: tuple[tuple[str, tuple[str, ...]], ...], base: Path, key: str
) -> tuple[PerFileIgnore, ...]:
    return tuple(
        PerFileIgnore(
            Glob(_check_glob(pattern.removeprefix("!"), key), str(base)),
            pattern.startswith("!"),
            selectors,
        )
        for pattern, selectors in pairs
    )


class FoundConfig(NamedTuple):
    """The configuration file with its text."""

    file: Path | None = None
    text: str = ""


def find(start: Path, config_file: Path | None = None) -> FoundConfig:
    """Return the configuration file.

    Args:
      start: a file or directory; files are searched there and upwards.
      config_file: the configuration file; without it, the nearest one that has the table.

    Raises:
      ConfigError: A file cannot be read or is not TOML.
    """
    if config_file is not None:
        text = _read(config_file)
        _toml(text, config_file)
        return FoundConfig(config_file, text)
    start = Path(os.path.abspath(start))
    for directory in (start, *start.parents):
        path = directory / "pyproject.toml"
        try:
            data = regular_files.read_limited(path)
        except regular_files.UnusableFileError as error:
            raise _unreadable(path, error) from None
        except OSError:
            continue
        if b"jax" not in data.replace(b"\0", b""):  # neither the table nor a requirement
            continue
        content = _decode(data, path)
        if "jaxresid" in table_in(_toml(content, path), "tool"):
            return FoundConfig(path, content)
    return FoundConfig()


def _read(path: Path) -> str:
    try:
        return _decode(regular_files.read_limited(path), path)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ConfigFileError:
    return ConfigFileError(path, f"cannot be read: {error.strerror or error}")


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        instead = wide_encoding(data)
        reason = f"it is {instead}; save it as UTF-8" if instead else "it is not UTF-8"
        raise ConfigFileError(path, f"not valid TOML: {reason}") from None


def _toml(text: str, file: Path) -> dict[str, object]:
    import tomllib

    try:
        return _loaded(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        place = re.search(r" \(at line (\d+), column (\d+)\)$", reason)
        line, column = (int(place[1]), int(place[2])) if place else (None, None)
        reason = reason[: place.start()] if place else reason
        if reason.endswith(" (at end of document)"):
            line = text.rstrip().count("\n") + 1
        raise ConfigFileError(file, f"not valid TOML: {reason}", line, column) from None
    except RecursionError:
        raise ConfigFileError(file, "not valid TOML: nested too deeply") from None


@lru_cache(maxsize=8)
def _loaded(text: str) -> dict[str, object]:
    """Return the tables of a file, which every directory below it asks for; nobody changes them."""
    import tomllib

    return tomllib.loads(text)


_STRINGS = ("select", "ignore", "extend-select", "extend-ignore", "fixable", "unfixable")
_GLOBS = ("exclude", "extend-exclude")
_FLAGS = ("force-exclude", "respect-gitignore", "unsafe-fixes", "fix")


def parse(text: str, file: Path = Path("pyproject.toml")) -> Options:
    """Return the options that `[tool.jaxresid]` sets in the text of a pyproject.toml.

    Args:
      text: the text of the file.
      file: the file's path, for messages.

    Raises:
      ConfigError: The text is not understood; the message names `file`, the line and what to write.
    """
    table = table_in(_toml(text, file), "tool").get("jaxresid", {})
    if not isinstance(table, dict):
        raise ConfigFileError(file, "tool.jaxresid is not a table; write [tool.jaxresid]")
    values: dict[str, object] = {}
    for key, value in table.items():
        try:
            values[key.replace("-", "_")] = _value(key, value)
        except ConfigError as error:
            raise ConfigFileError(file, str(error), line_of(text, key, *error.keys)) from None
    return Options(**values)  # type: ignore[arg-type]


def _value(key: str, value: object) -> object:
    if key in _FLAGS:
        return flag(key, value)
    if key in _STRINGS or key in _GLOBS:
        strings = string_list(key, value, '["JXR1"]' if key in _STRINGS else '["vendored"]')
        return tuple(_check_glob(s, f"`{key}`") for s in strings) if key in _GLOBS else strings
    if key == "per-file-ignores":
        return _file_table(value)
    if key == "target-jax":
        if not isinstance(value, str):
            raise ConfigError(f'`target-jax` is {kind_of(value)}; write target-jax = "0.10"')
        return parse_target_jax(value)
    if key == "output-format":
        if not isinstance(value, str) or value not in OUTPUT_FORMATS:
            raise ConfigError(_no_format(value))
        return value
    if key == "on":
        return string(key, value, '"gpu:h100"')
    if key == "targets":
        return named_targets(value)
    guess = did_you_mean(key.replace("_", "-"), KNOWN_KEYS)
    known = ", ".join(KNOWN_KEYS)
    raise ConfigError(f"unknown key `{key}` in [tool.jaxresid]{guess}\n  known keys: {known}")


def _file_table(value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    example = '{ "tests/*" = ["JXR101"] }'
    if not isinstance(value, dict):
        raise ConfigError(
            f"`per-file-ignores` is {kind_of(value)}; write a table, per-file-ignores = {example}"
        )
    pairs = []
    for pattern, selectors in value.items():
        _check_glob(pattern.removeprefix("!"), "`per-file-ignores`")
        pairs.append((pattern, string_list(f'"{pattern}"', selectors, '["JXR101"]')))
    return tuple(pairs)


def _no_format(value: object) -> str:
    guess = did_you_mean(str(value), OUTPUT_FORMATS)
    return f"output-format: {value!r} is not one of {', '.join(OUTPUT_FORMATS)}{guess}"
