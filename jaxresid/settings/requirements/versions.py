"""Work out the newest JAX that requirements admit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Version = tuple[int, int]
# Requirements on jax, as PEP 508 writes them; those of one group hold at the same time.
Groups = tuple[tuple[str, ...], ...]


# Compiled where there is a requirement to read.
_ON_JAX = r"(?is)\s*jax\s*(?:\[[^\]]*\])?\s*(?=$|[(<>=!~;@])(.*)"
_NO_UPPER_BOUND = r"[\s()]*(?:(?:>=?|!=)[^,<=~;@]*,?)*[\s()]*"


def _on_jax(lines: object) -> list[str]:
    """Return the requirements on jax of a list; none where it is no list, or holds no text."""
    if not isinstance(lines, list | tuple):
        return []
    return [line for line in lines if isinstance(line, str) and re.match(_ON_JAX, line)]


def groups_of(dependencies: object, extras: Iterable[object]) -> Groups:
    """Return the requirements on jax of a project in groups that hold at the same time.

    There is one group with what `dependencies` always requires. If that is nothing, there is one
    group for each requirement that has a marker, and one for each extra. (More would only narrow
    the first.)
    """
    lines = _on_jax(dependencies)
    always = tuple(line for line in lines if ";" not in line)
    if always:
        return (always,)
    groups: list[tuple[str, ...]] = [(line,) for line in lines]
    for extra in extras:
        lines = _on_jax(extra)
        plain = tuple(line for line in lines if ";" not in line)
        groups += [plain] if plain else [(line,) for line in lines]
    return tuple(groups)


def admits(groups: Groups, version: Version) -> bool:
    """Return whether a group admits a minor version of jax, or there is no group."""
    major, minor = version
    below = f"jax<{major}.{minor + 1}"
    return not groups or any(
        _newest_of_group((*(line.partition(";")[0] for line in group), below))[1] == version
        for group in groups
    )


def newest_admitted(groups: Iterable[Sequence[str]]) -> Version | None:
    """Return the newest minor version of jax that any group admits, None for no upper bound.

    `jax>=0.4,<0.8` admits 0.7. Releases are not looked up: where the bound lies after the last
    minor version it names, as in `<1`, there is none.
    """
    newest: Version | None = None
    for group in groups:
        unbounded, version = _newest_of_group(group)
        if unbounded:
            return None
        newest = max(filter(None, (newest, version)), default=None)
    return newest


def _newest_of_group(group: Sequence[str]) -> tuple[bool, Version | None]:
    """Return whether a group is unbounded, else the newest minor version that it admits, if any."""
    tails = [match[1] for line in group if (match := re.match(_ON_JAX, line))]
    if all(re.fullmatch(_NO_UPPER_BOUND, tail.partition(";")[0]) for tail in tails):
        return True, None
    # Its import costs as much as the rest of a small run.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion
    from packaging.version import Version as Parsed

    specifiers = SpecifierSet()
    for line in group:
        try:
            specifiers &= Requirement(line).specifier
        except InvalidRequirement:  # for the build backend to say
            return True, None
    named: list[Parsed] = []
    for specifier in specifiers:
        try:
            named.append(Parsed(specifier.version.removesuffix(".*")))
        except InvalidVersion:
            return True, None

    def admits(major: int, minor: int) -> bool:
        near = {v.micro + d for v in named for d in (0, 1)} | {0}
        candidates = [Parsed(f"{major}.{minor}.{micro}") for micro in near]
        candidates += [v for v in named if (v.major, v.minor) == (major, minor)]
        return any(specifiers.contains(candidate, prereleases=True) for candidate in candidates)

    for major in range(max((v.major for v in named), default=0) + 1, -1, -1):
        last = max((v.minor for v in named if v.major == major), default=-1)
        if admits(major, last + 1):
            return True, None
        for minor in range(last, -1, -1):
            if admits(major, minor):
                return False, (major, minor)
    return False, None
