"""Read the requirements on jax of a conda environment, whose YAML needs no parser for that."""

from __future__ import annotations

import re

from jaxresid.settings.requirements.versions import on_jax

_SPEC = re.compile(r"(?i)(?:[\w./-]+::)?jax(?![\w.-])\s*(.*)")
_NUMBER = re.compile(r"v?(\d[\w.+!-]*?)(\.?\*)?")


def environment_requirements(text: str) -> list[str]:
    """Return what an environment.yml requires of jax, as PEP 508 writes it.

    Its own packages count, and those that it has pip install.
    """
    found: list[str] = []
    for spec in filter(None, map(_item, text.split("\n"))):
        found += on_jax([spec]) if re.match(r"(?i)jax\s*\[", spec) else conda_requirement(spec)
    return found


def _item(line: str) -> str:
    """Return `jax=0.4.16` of the line `- "jax=0.4.16"  # why`; '' where it is no item of a list."""
    line = line.strip(" \t\r")
    if not line.startswith(("- ", "-\t")):
        return ""
    item = re.split(r"[ \t]#", line[1:], maxsplit=1)[0].strip(" \t")
    if len(item) > 1 and item[0] in "\"'" and item[0] == item[-1]:
        item = item[1:-1]
    return "" if {'"', "'", "#"} & set(item) else item.strip()


def conda_requirement(spec: str) -> list[str]:
    """Return a spec of conda's, `jax=0.4.16=pyhd8ed1ab_0`, as PEP 508 writes it, if it is of jax.

    Of alternatives, `0.4.*|0.5.*`, the last counts, which is the newest as people write them.
    """
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        return []
    bounds = (_bound(part.strip()) for part in match[1].rpartition("|")[2].split(","))
    return [f"jax{','.join(filter(None, bounds))}"]


def _bound(part: str) -> str:
    """Return one bound as PEP 440 writes it; '' for one that bounds nothing."""
    if not part or part == "*":
        return ""
    if compared := re.fullmatch(r"([<>!~]=?)\s*+(\S*+).*", part):
        return f"{compared[1]}{compared[2]}" if compared[2] else ""
    exact = part.startswith("==")
    # A build may follow the version: `=0.4.16=cpu_py311` or `0.4.16 cpu_py311`.
    number = re.split(r"[=\s]", part.lstrip("=").strip(), maxsplit=1)[0]
    version = _NUMBER.fullmatch(number)
    if version is None:
        return ""
    is_prefix = version[2] or (part.startswith("=") and not exact)
    return f"=={version[1]}{'.*' if is_prefix else ''}"
