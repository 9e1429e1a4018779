"""Read the requirements on jax of a pyproject.toml or a pixi.toml, in the tables of many tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from jaxresid.settings.requirements.conda import conda_requirement
from jaxresid.settings.requirements.versions import Groups, groups_of
from jaxresid.settings.toml_values import table_in

_CARET = re.compile(r"\^\s*+v?(\d++)(?:\.(\d++))?(?:\.(\d++))?\S*")
# A marker in place of Poetry's own: that there is one is all that counts.
_SOMEWHERE = "; sys_platform != ''"
_TILDE = re.compile(r"~\s*+v?(\d++)(?:\.(\d++))?(?:\.(\d++))?\S*")


def jax_requirements(document: Mapping[str, object]) -> Groups:
    """Return the requirements on jax of a pyproject.toml, in groups that hold at the same time.

    `project.dependencies` counts; what does not name jax there counts by its extras. Then come, as
    they are not part of what the project asks of its users, the tables of Poetry and of pixi and
    the dependency groups.
    """
    project = table_in(document, "project")
    found = groups_of(project.get("dependencies"), optional(project))
    return (
        found
        or _poetry(document)
        or pixi_requirements(table_in(document, "tool", "pixi"))
        or groups_of(None, table_in(document, "dependency-groups").values())
    )


def optional(project: Mapping[str, object]) -> Iterator[object]:
    """Yield the lists of requirements of the extras of a `project` table."""
    yield from table_in(project, "optional-dependencies").values()


def _poetry(document: Mapping[str, object]) -> Groups:
    poetry = table_in(document, "tool", "poetry")
    groups = [
        table_in(group, "dependencies")
        for group in table_in(poetry, "group").values()
        if isinstance(group, dict)
    ]
    groups.append(table_in(poetry, "dev-dependencies"))
    return groups_of(_poetry_lines(table_in(poetry, "dependencies")), map(_poetry_lines, groups))


def _poetry_lines(table: Mapping[str, object]) -> list[str]:
    """Return what a table of Poetry requires of jax, as PEP 508 writes it."""
    lines: list[str] = []
    for value in _entries(table):
        if isinstance(value, str):
            lines.append(f"jax{_bounds(value)}")
        elif isinstance(value, dict):
            version = value.get("version")
            bounds = _bounds(version) if isinstance(version, str) else ""
            only = value.get("markers") or value.get("python") or value.get("platform")
            lines.append(f"jax{bounds}{_SOMEWHERE if only else ''}")
    return lines


def _entries(table: Mapping[str, object]) -> Iterator[object]:
    """Yield what a table says of jax; Poetry has a list where it differs between machines."""
    for name, value in table.items():
        if name.lower() == "jax":
            yield from value if isinstance(value, list) else (value,)


def _bounds(constraint: str) -> str:
    """Return a constraint of Poetry's, `^0.4.13`, as PEP 440 writes it, `>=0.4.13,<0.5`.

    Of alternatives, `^0.4 || ^0.5`, the last counts, which is the newest as people write them.
    """
    parts = map(str.strip, constraint.rpartition("||")[2].split(","))
    return ",".join(bound for part in parts if (bound := _bound(part)))


def _bound(part: str) -> str:
    if part in {"", "*"}:
        return ""
    if match := _CARET.fullmatch(part):
        numbers = [int(n) for n in match.groups() if n is not None]
        # The first number that is not 0 stays the same.
        at = next((i for i, n in enumerate(numbers) if n), len(numbers) - 1)
        return f">={_dotted(numbers)},<{_dotted([*numbers[:at], numbers[at] + 1])}"
    if (match := _TILDE.fullmatch(part)) and not part.startswith("~="):
        numbers = [int(n) for n in match.groups() if n is not None]
        at = min(1, len(numbers) - 1)
        return f">={_dotted(numbers)},<{_dotted([*numbers[:at], numbers[at] + 1])}"
    return f"=={part}" if part[0].isdigit() else part


def _dotted(numbers: list[int]) -> str:
    return ".".join(map(str, numbers))


def pixi_requirements(document: Mapping[str, object]) -> Groups:
    """Return the requirements on jax of a pixi.toml, or of `tool.pixi` of a pyproject.toml."""
    features = [f for f in table_in(document, "feature").values() if isinstance(f, dict)]
    return groups_of(_pixi_lines(document), map(_pixi_lines, features))


def _pixi_lines(table: Mapping[str, object]) -> list[str]:
    lines: list[str] = []
    for key in ("dependencies", "pypi-dependencies"):
        for value in _entries(table_in(table, key)):
            version = value.get("version", "*") if isinstance(value, dict) else value
            if isinstance(version, str):
                lines += conda_requirement(f"jax {version}")
    return lines
