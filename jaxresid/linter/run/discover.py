"""Find the files to lint: those named, and those below the directories named, as ruff does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from jaxresid.base import regular_files
from jaxresid.base.errors import JaxresidError
from jaxresid.settings.config import Config
from jaxresid.settings.globs import STAR, regex_of_pieces
from jaxresid.settings.toml_values import ConfigFileError

# Small values are NamedTuples here: a dataclass takes half a millisecond to make, and a commit hook
# makes them all at every commit.
SUFFIXES = (".py", ".pyi", ".ipynb")
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_INSTALLED = ("site-packages", "dist-packages")


class UsageError(JaxresidError):
    """The error of a request that cannot be carried out as it was made."""


class FoundFile(NamedTuple):
    """A file to lint.

    Attributes:
      path: as it was named, or below the directory as that was named; without `./`.
      absolute: the absolute path.
      explicit: whether the user named the file itself.
    """

    path: str
    absolute: Path
    explicit: bool


class UnreadablePath(NamedTuple):
    """A file or directory that was found and cannot be read; `reason` completes "cannot read"."""

    path: str
    reason: str


def discover(paths: Sequence[str], config: Config) -> tuple[FoundFile | UnreadablePath, ...]:
    """Return the files that the paths stand for, each once, sorted by path.

    A file that is named is taken whatever it is called; a directory that is named is walked even
    where it is excluded or ignored itself. Only `force-exclude` changes that. Links to directories
    are not followed, a file that has several names is taken once, and `.gitignore` counts inside a
    repository only, as for git.

    Raises:
      UsageError: A path does not exist.
      ConfigFileError: A `.gitignore` or the like is a pipe, a device or too big.
    """
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(f"no such file or directory: {path}")
    excluded = config.excluder()
    found: dict[str, FoundFile] = {}
    problems: dict[str, UnreadablePath] = {}
    for path in paths:
        shown = str(Path(path))
        if config.force_exclude and _within_excluded(os.path.abspath(path), config.root, excluded):
            continue
        items = _expand(shown, config.respect_gitignore, excluded)
        for real, item in sorted(items, key=lambda pair: pair[1].path):
            if isinstance(item, UnreadablePath):
                problems.setdefault(real, item)
            elif real not in found:
                found[real] = item
            elif item.explicit:
                found[real] = found[real]._replace(explicit=True)
    everything: list[FoundFile | UnreadablePath] = [*found.values(), *problems.values()]
    return tuple(sorted(everything, key=lambda item: item.path))


def is_excluded(path: str, config: Config) -> bool:
    """Return whether the configuration excludes a file, which need not be there."""
    return _within_excluded(path, config.root, config.excluder())


_Excluded = Callable[[str, str], bool]


def _within_excluded(path: str, root: Path, excluded: _Excluded) -> bool:
    """Return whether a path or a directory that contains it, up to the root, is excluded."""
    while path != str(root):
        parent, name = os.path.split(path)
        if excluded(path, name):
            return True
        if parent == path:
            break
        path = parent
    return False


def _expand(
    display_path: str, respect_gitignore: bool, excluded: _Excluded
) -> Iterator[tuple[str, FoundFile | UnreadablePath]]:
    """Yield (real path, what is there) for one argument."""
    absolute = os.path.abspath(display_path)
    try:
        real = os.path.realpath(display_path, strict=True)
    except OSError as error:
        yield absolute, UnreadablePath(display_path, _reason(error))
        return
    if os.path.isfile(real):
        yield real, FoundFile(display_path, Path(absolute), explicit=True)
        return
    if not os.path.isdir(real):  # reading a pipe may not end
        yield real, UnreadablePath(display_path, "it is not a regular file")
        return
    ignores = _ignores_above(real) if respect_gitignore else _Ignores()
    prefix = "" if display_path == "." else os.path.join(display_path, "")
    place = _Directory(prefix, absolute, real)
    yield from _walk(place, ignores, excluded, respect_gitignore)


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is a broken symbolic link"
    return (error.strerror or str(error)).lower()


class _Directory(NamedTuple):
    """A directory: what its files' names are shown after, where it is named, where it is."""

    prefix: str
    absolute: str
    real: str


def _walk(
    top: _Directory, ignores: _Ignores, excluded: _Excluded, respect_gitignore: bool
) -> Iterator[tuple[str, FoundFile | UnreadablePath]]:
    todo = [(top, ignores)]
    while todo:
        place, ignores = todo.pop()
        try:
            with os.scandir(place.absolute) as scan:
                entries = list(scan)
        except OSError as error:
            shown = place.prefix.rstrip(os.sep) or "."
            yield place.real, UnreadablePath(shown, (error.strerror or str(error)).lower())
            continue
        if respect_gitignore:
            ignores = ignores.entering(place.real, {entry.name for entry in entries})
        above, above_real = os.path.join(place.absolute, ""), os.path.join(place.real, "")
        for entry in entries:
            name = entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            if not is_directory and not name.endswith(SUFFIXES):
                continue
            absolute, real = f"{above}{name}", f"{above_real}{name}"
            if excluded(absolute, name) or ignores.match(real, name, is_directory):
                continue
            if is_directory:
                inner = _Directory(f"{place.prefix}{name}{os.sep}", absolute, real)
                todo.append((inner, ignores))
            else:
                yield from _file(entry, f"{place.prefix}{name}", absolute, real)


def _file(
    entry: os.DirEntry[str], shown: str, absolute: str, real: str
) -> Iterator[tuple[str, FoundFile | UnreadablePath]]:
    """Yield what an entry that is not a directory is; nothing for a link to a directory."""
    try:
        if entry.is_symlink():
            real = os.path.realpath(absolute, strict=True)
        if entry.is_file():
            yield real, FoundFile(shown, Path(absolute), explicit=False)
        elif not entry.is_dir():  # reading a pipe would not end
            yield real, UnreadablePath(shown, "it is not a regular file")
    except OSError as error:
        if not entry.name.startswith(".#"):  # an editor's lock is a link to nothing
            yield real, UnreadablePath(shown, _reason(error))


# .gitignore, entry by entry: what is ignored is not entered, so no pattern speaks for what is
# below the path it matches.


class _Pattern(NamedTuple):
    """A line of a .gitignore.

    Attributes:
      matches: the regex of the path relative to the .gitignore, or of its last component.
      whole: whether the regex is of the path.
      directories_only: whether only directories are matched.
      ignored: whether what matches is ignored, or included again.
    """

    matches: re.Pattern[str]
    whole: bool
    directories_only: bool
    ignored: bool


class _IgnoreFile(NamedTuple):
    """A .gitignore.

    Attributes:
      base: the directory that its patterns are relative to, with a slash at the end.
      patterns: its patterns, the last first.
      names: what the last component of a path must match for a pattern to ignore it, to spare most
        paths the patterns; None where nothing is ignored.
    """

    base: str
    patterns: tuple[_Pattern, ...]
    names: re.Pattern[str] | None

    def check(self, path: str, name: str, is_directory: bool) -> bool | None:
        """Return whether a path is ignored, None if no pattern decides."""
        relative = path[len(self.base) :].replace(os.sep, "/")
        for pattern in self.patterns:
            if pattern.directories_only and not is_directory:
                continue
            if pattern.matches.fullmatch(relative if pattern.whole else name):
                return pattern.ignored
        return None


@lru_cache(maxsize=256)
def _patterns(text: str) -> tuple[_Pattern, ...]:
    return tuple(filter(None, map(_pattern, reversed(text.split("\n")))))


def _pattern(line: str) -> _Pattern | None:
    line = line.removesuffix("\r")
    bare = line.rstrip(" ")
    escapes = len(bare) - len(bare.rstrip("\\"))
    line = line[: len(bare) + escapes % 2]  # an escaped space stays
    if not line or line[0] == "#":
        return None
    glob = line.removeprefix("!")
    directories_only = glob.endswith("/")
    glob = glob.removesuffix("/")
    whole = "/" in glob
    regex = _wildmatch(glob.removeprefix("/"))
    if regex is None:
        return None
    return _Pattern(re.compile(regex, re.DOTALL), whole, directories_only, line[0] != "!")


@cache
def _tokens() -> re.Pattern[str]:
    """Return the regex of a glob's tokens.

    It is compiled only where there is a .gitignore to read, as most commit hooks need none.
    """
    return re.compile(r"(?:^|(?<=/))\*\*+/|(?:^|(?<=/))\*\*+$|\*+|\\.|.", re.DOTALL)


def _wildmatch(glob: str) -> str | None:
    """Return the regex of git's glob, None if it matches nothing."""
    # git compares what stands before the first wildcard by itself, so `a**` begins with `**`.
    literal = re.split(r"[*?\[\\]", glob, maxsplit=1)[0]
    glob = glob[len(literal) :]
    groups: list[list[str]] = [[]]  # with any number of folders between them
    end = ""
    i = 0
    while match := _tokens().match(glob, i):
        token, i = match[0], match.end()
        if token == "[":
            found = _classes().match(glob, i)
            if found is None:
                return None
            groups[-1].append(_class(found))
            i = found.end()
        elif token == "\\":
            return None
        elif token.endswith("*/"):
            groups.append([])
        elif token[0] == "*":
            bounded = len(token) > 1 and i == len(glob) and glob[: match.start()][-1:] in ("", "/")
            if bounded:
                end = ".*"
            else:
                groups[-1].append(STAR)
        else:
            groups[-1].append("[^/]" if token == "?" else re.escape(token[-1]))
    first, *others = map(_levels, groups)
    # As for the wildcards of `regex_of_pieces`: all but the last where they first occur.
    between = "".join(f"(?>(?:.*?/)??{group})" for group in others[:-1])
    last = f"(?:.*/)?{others[-1]}" if others else ""
    return f"{re.escape(literal)}{first}{between}{last}{end}"


def _levels(pieces: Sequence[str]) -> str:
    """Return the regex of pieces whose wildcards match no slash."""
    levels: list[list[str]] = [[]]
    for piece in pieces:
        if piece == "/":
            levels.append([])
        else:
            levels[-1].append(piece)
    return "/".join(regex_of_pieces(level, "[^/]") for level in levels)


@cache
def _classes() -> re.Pattern[str]:
    return re.compile(r"([!^]?)(\]?(?:\[:\w+:\]|\\.|[^\]\\])*)\]", re.DOTALL)


@cache
def _members() -> re.Pattern[str]:
    member = r"\[:(?P<named>\w+):\]|(?P<low>\\.|.)(?:-(?P<high>\\.|[^\]]))?"
    return re.compile(member, re.DOTALL)


_NAMED = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "lower": "a-z",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


def _class(match: re.Match[str]) -> str:
    """Return the regex of a class such as `!a-z]`; no class matches a slash."""
    members = []
    for member in _members().finditer(match[2]):
        if member["named"]:
            members.append(_NAMED.get(member["named"], ""))
            continue
        low = member["low"][-1]
        high = (member["high"] or low)[-1]
        if low <= high:
            members.append(f"{re.escape(low)}-{re.escape(high)}")
    inside = "".join(members)
    if match[1]:
        return f"[^/{inside}]"
    return f"(?!/)[{inside}]" if inside else "(?!)"


class _Ignores(NamedTuple):
    """The ignore files that count in a directory, the deepest last; none outside a repository."""

    files: tuple[_IgnoreFile, ...] = ()
    in_repository: bool = False

    def entering(self, directory: str, names: set[str] | frozenset[str]) -> _Ignores:
        """Return the ignore files that count in a directory with these entries."""
        files, in_repository = self.files, self.in_repository
        if ".git" in names:
            files, in_repository = (), True
            files += _read_ignores(_info_exclude(directory), directory)
        if in_repository and ".gitignore" in names:
            files += _read_ignores(os.path.join(directory, ".gitignore"), directory)
        return _Ignores(files, in_repository)

    def match(self, path: str, name: str, is_directory: bool) -> bool:
        if not any(file.names and file.names.fullmatch(name) for file in self.files):
            return False
        for file in reversed(self.files):
            ignored = file.check(path, name, is_directory)
            if ignored is not None:
                return ignored
        return False


def _ignores_above(directory: str) -> _Ignores:
    """Return the ignore files that count above a directory.

    There are none if they ignore the directory itself.
    """
    above = list(Path(directory).parents)
    repository = next((i for i, d in enumerate(above) if (d / ".git").exists()), None)
    if repository is None or os.path.exists(os.path.join(directory, ".git")):
        return _Ignores()
    ignores = _Ignores()
    chain = [*reversed(above[: repository + 1]), Path(directory)]
    for parent, child in pairwise(chain):
        names = {name for name in (".git", ".gitignore") if (parent / name).exists()}
        ignores = ignores.entering(str(parent), names)
        if ignores.match(str(child), child.name, is_directory=True):
            return _Ignores(in_repository=True)
    return ignores


def _read_ignores(path: str, base: str) -> tuple[_IgnoreFile, ...]:
    text = _read(path).removeprefix("\ufeff")
    if not text:
        return ()
    return (_IgnoreFile(os.path.join(base, ""), _patterns(text), _possible_names(text)),)


def _read(path: str) -> str:
    """Return the text of a file of git's; '' for one that is not there or may not be read.

    Raises:
      ConfigFileError: It is a pipe, a device or the like, or too big.
    """
    try:
        data = regular_files.read_limited(Path(path))
    except regular_files.UnusableFileError as error:
        raise ConfigFileError(Path(path), f"cannot be read: {error.strerror}") from None
    except (OSError, ValueError):  # ValueError: a name with a null character
        return ""
    return data.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=256)
def _possible_names(text: str) -> re.Pattern[str] | None:
    """Return a regex for the last components of the paths that a .gitignore's text ignores.

    It may match more names than those. None is returned where nothing is ignored.
    """
    pieces: dict[str, None] = {}
    for line in text.split("\n"):
        pattern = line.removesuffix("\r").rstrip(" ")
        if pattern and pattern[0] not in "#!":
            last = pattern.rstrip("/").rpartition("/")[2]
            in_class = "/" in pattern.partition("[")[2]
            unclear = in_class or "\\" in pattern or re.search(r"[^/]\*\*", pattern)
            pieces[".*" if unclear else _loose(last)] = None
    return re.compile("|".join(pieces), re.DOTALL) if pieces else None


def _loose(glob: str) -> str:
    before, bracket, _ = glob.partition("[")
    pieces = {"*": STAR, "?": "."}
    return regex_of_pieces(
        [*(pieces.get(c) or re.escape(c) for c in before), *([STAR] if bracket else ())]
    )


def _info_exclude(directory: str) -> str:
    """Return the path of `.git/info/exclude`.

    `.git` is a file in submodules and in further work trees.
    """
    git = os.path.join(directory, ".git")
    if not os.path.isdir(git):
        git = os.path.join(directory, _read(git).removeprefix("gitdir:").strip())
        git = os.path.join(git, _read(os.path.join(git, "commondir")).strip())
    return os.path.join(git, "info", "exclude")


# Projects and modules.


def project_root(path: str | os.PathLike[str]) -> Path:
    """Return the directory whose files make one project with the file or directory `path`.

    It is the nearest one upwards with a pyproject.toml, setup.py, setup.cfg or .git; without one,
    or for an installed package, that of the topmost package around it, and failing that its own.
    """
    absolute = Path(os.path.abspath(path))
    own = absolute if absolute.is_dir() else absolute.parent
    marked = marked_root(own)
    if marked is not None:
        return marked
    top = own
    while _is_package(top.parent, None) and _is_package(top, None):
        top = top.parent
    return top


def marked_root(directory: Path) -> Path | None:
    """Return the nearest directory upwards that a file or `.git` marks as that of a project.

    None is returned where there is none, or the directory is in an installed package.
    """
    for each in (directory, *directory.parents):
        if each.name in _INSTALLED:
            break
        if any(os.path.exists(each / name) for name in _PROJECT_FILES):
            return each
    return None


def module_name(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str],
    packages: dict[Path, bool] | None = None,
) -> str | None:
    """Return the dotted name a file is imported under, None if it cannot be imported by name.

    The packages around it are those with `__init__.py`, whatever `src` they are in. In a directory
    without one the name is the path from the root, less a leading `src`.

    Args:
      path: the file.
      root: the directory of its project.
      packages: remembers between calls which directories are packages.
    """
    absolute, root = Path(os.path.abspath(path)), Path(os.path.abspath(root))
    if absolute.suffix not in (".py", ".pyi"):
        return None
    parts = [] if absolute.stem == "__init__" else [absolute.stem]
    directory = absolute.parent
    if _is_package(directory, packages):
        while _is_package(directory, packages) and directory != directory.parent:
            parts.insert(0, directory.name)
            directory = directory.parent
    elif directory.is_relative_to(root):
        above = directory.relative_to(root).parts
        parts = [*(above[1:] if above[:1] == ("src",) else above), *parts]
    return ".".join(parts) if parts and all(map(str.isidentifier, parts)) else None


def _is_package(directory: Path, packages: dict[Path, bool] | None) -> bool:
    if packages is not None and directory in packages:
        return packages[directory]
    answer = any((directory / f"__init__{suffix}").is_file() for suffix in (".py", ".pyi"))
    if packages is not None:
        packages[directory] = answer
    return answer
