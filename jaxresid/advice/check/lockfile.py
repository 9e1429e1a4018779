"""Read and write lockfiles: the figures of targets, to be committed and read in reviews."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from jaxresid.base.errors import InputsError
from jaxresid.base.text.safe_text import visible
from jaxresid.base.text.units import parse_bytes
from jaxresid.results import Baseline, BaselineLine

NAME = "jaxresid.lock"
_VERSION = 1
_HEAD = """\
# What targets keep and take, rounded up: `jaxresid check --update` writes it.
# Where one grows by more than its max-growth, `jaxresid check` fails.
"""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LINE = re.compile(r" *(\S+ \S+)  (.+)")


def lockfile_text(baselines: Mapping[str, Baseline]) -> str:
    """Return the text of a lockfile, as TOML, its targets sorted by name."""
    parts = [f"{_HEAD}version = {_VERSION}\n"]
    for name in sorted(baselines):
        key = name if _BARE.fullmatch(name) else _text(name)
        parts.append("\n".join([f"[targets.{key}]", *_table(baselines[name])]) + "\n")
    return "\n".join(parts)


def baselines_in(text: str, file: str) -> dict[str, Baseline]:
    """Return the figures of a lockfile by target.

    Args:
      text: The text of the file.
      file: What errors call it.

    Raises:
      InputsError: It is no lockfile.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise InputsError(
            f"{file} is no lockfile: {e}; the same command with --update makes one"
        ) from e
    if data.get("version") != _VERSION:
        raise InputsError(
            f"{file} is no lockfile of version {_VERSION}; the same command with --update makes one"
        )
    targets = data.get("targets", {})
    try:
        return {name: _baseline(table) for name, table in targets.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise InputsError(
            f"{file} has a target that is not understood ({e}); the same command with"
            " --update makes it anew"
        ) from e


def rounded_up(nbytes: int) -> str:
    """Return a number of bytes as text of four digits, such as `1.074 GiB`, rounded up."""
    unit = 0
    while nbytes >= 1024 ** (unit + 1) and unit < len(_UNITS) - 1:
        unit += 1
    size = 1024**unit
    digits = max(4 - len(str(nbytes // size)), 0) if unit else 0
    scaled = -(-nbytes * 10**digits // size)  # exact, unlike a float
    whole, rest = divmod(scaled, 10**digits)
    fraction = f"{rest:0{digits}}".rstrip("0") if digits else ""
    return f"{whole}{'.' if fraction else ''}{fraction} {_UNITS[unit]}"


def _table(baseline: Baseline) -> Iterator[str]:
    yield f"place = {_text(baseline.place)}"
    yield f"jax = {_text(baseline.jax)}"
    if baseline.peak_nbytes is not None and baseline.peak_by is not None:
        yield f"peak = {_text(rounded_up(baseline.peak_nbytes))}"
        yield f"peak-by = {_text(baseline.peak_by)}"
    yield f"kept = {_text(rounded_up(baseline.kept_nbytes))}"
    if baseline.lines:
        sizes = [rounded_up(line.nbytes) for line in baseline.lines]
        width = max(map(len, sizes))
        rows = zip(sizes, baseline.lines, strict=True)
        yield "lines = ["
        yield from (f"  {_text(f'{size:>{width}}  {line.code}')}," for size, line in rows)
        yield "]"


def _text(text: str) -> str:
    """Return a string of TOML, whose escapes are those of JSON."""
    return json.dumps(visible(text), ensure_ascii=False)


def _baseline(table: Mapping[str, Any]) -> Baseline:
    peak, by = table.get("peak"), table.get("peak-by")
    if by not in (None, "estimate", "xla") or (peak is None) != (by is None):
        raise ValueError(f"peak-by {by!r}")
    return Baseline(
        str(table["place"]),
        str(table["jax"]),
        parse_bytes(table["kept"]),
        None if peak is None else parse_bytes(peak),
        by,
        tuple(map(_line, table.get("lines", []))),
    )


def _line(text: str) -> BaselineLine:
    match = _LINE.fullmatch(text)
    if match is None:
        raise ValueError(f"line {text!r}")
    return BaselineLine(match[2], parse_bytes(match[1]))
