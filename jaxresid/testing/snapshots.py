"""Snapshots of what is kept: text files beside the tests, to be read in reviews."""

from __future__ import annotations

import difflib
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxresid.base.text.safe_text import lines, one_line
from jaxresid.base.text.units import format_bytes
from jaxresid.base.text_files import write_text
from jaxresid.results import Aval, Checkpoint, Computed, Location, Report, Residual

FOLDER = "__residuals__"
_UPDATE = "pytest --update-residuals"
# What stands in the file and is not compared.
_COMMENT = "#"


def assert_snapshot(report: Report, node: pytest.Item, name: str, *, updates: bool) -> str | None:
    """Compare a report with its snapshot, or write it; return how they differ.

    Args:
      report: The report.
      node: The test.
      name: What tells several snapshots of one test apart.
      updates: Whether to write a snapshot that is missing or differs.

    Raises:
      JaxresidError: It cannot be written.
    """
    file = _file(node, name)
    shown = os.path.relpath(file)
    found = snapshot(report, node.config.rootpath)
    text = file.read_text(encoding="utf-8") if file.exists() else None
    if text is not None and _compared(text) == _compared(found):
        return None
    if updates:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(str(file), found)
        return None
    if text is None:
        return f"there is no snapshot {shown}; `{_UPDATE}` writes it"
    before, now = _compared(text), _compared(found)
    changed = list(difflib.unified_diff(before, now, "snapshot", "now", lineterm="", n=0))
    made = next((line for line in text.splitlines() if line.startswith(f"{_COMMENT} jax ")), "")
    here = f"jax {report.jax.version}"
    versions = f"; it was made with{made[1:]}, this is {here}" if made[2:] != here else ""
    head = f"what is kept is not as in {shown}{versions}; `{_UPDATE}` writes it anew"
    return lines("\n".join([head, *changed[2:]]))


def snapshot(report: Report, root: Path) -> str:
    """Return the text of a snapshot, without line numbers and without estimates.

    Args:
      report: The report.
      root: What paths are relative to.
    """
    what = "What the backward pass keeps" if report.target.has_gradient else "What goes in and out"
    head = [
        f"{_COMMENT} {what}; `{_UPDATE}` writes this file.",
        f"{_COMMENT} jax {report.jax.version}",
        f"{report.target.name} on {report.place.name}",
    ]
    if not report.target.has_gradient:
        return "\n".join([*head, "", *_in_and_out(report)]) + "\n"
    rows = sorted(_rows(report, root))
    kept = [f"{format_bytes(total):>10}  {count} x {row}" for row, (total, count) in _summed(rows)]
    totals = f"{format_bytes(report.totals.computed_nbytes):>10}  kept for the backward pass"
    verdicts = sorted(map(_checkpoint, report.checkpoints))
    return "\n".join([*head, "", totals, *kept, *([""] if verdicts else []), *verdicts]) + "\n"


def _compared(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith(_COMMENT)]


def _rows(report: Report, root: Path) -> Iterator[tuple[str, int]]:
    for residual in report.residuals:
        if isinstance(residual.origin, Computed) and residual.nbytes:
            yield one_line(_row(residual, residual.origin, root)), residual.nbytes


def _row(residual: Residual, origin: Computed, root: Path) -> str:
    what = origin.name or origin.primitive
    memory = " in host memory" if residual.aval.memory == "host" else ""
    where = origin.location or origin.library
    return f"{_aval(residual.aval)} {what}{memory}  {_place(where, root)}".rstrip()


def _summed(rows: list[tuple[str, int]]) -> list[tuple[str, tuple[int, int]]]:
    """Return each row once with its bytes and how often it is there, most bytes first."""
    totals: dict[str, tuple[int, int]] = {}
    for row, nbytes in rows:
        total, count = totals.get(row, (0, 0))
        totals[row] = total + nbytes, count + 1
    return sorted(totals.items(), key=lambda each: (-each[1][0], each[0]))


def _aval(aval: Aval) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _place(where: Location | None, root: Path) -> str:
    """Return a line without its number, which moves: the file, the function and the code."""
    if where is None:
        return ""
    path = Path(os.path.abspath(where.file))
    # Where a library is installed differs from one machine to the next.
    file = path.relative_to(root) if path.is_relative_to(root) else Path(*path.parts[-2:])
    return f"{file.as_posix()} {where.function}: {where.code}".rstrip(": ")


def _in_and_out(report: Report) -> Iterator[str]:
    """Yield the arguments and the outputs of a program that takes no gradient."""
    for name, arrays in (("arguments", report.arguments), ("outputs", report.outputs)):
        yield f"{format_bytes(sum(a.nbytes for a in arrays)):>10}  {name}"
        for a in arrays:
            given = ", donated" * a.is_donated
            back = f", returned updated{given}" if a.counterpart is not None else given
            what = f"{_aval(a.aval)} {a.path}".rstrip()
            yield one_line(f"{format_bytes(a.nbytes):>10}  {what}{back * (name == 'arguments')}")


def _checkpoint(checkpoint: Checkpoint) -> str:
    policy = f" with {checkpoint.policy}" if checkpoint.policy else ""
    return one_line(f"checkpoint of {checkpoint.function}{policy}: {checkpoint.verdict}")


def _file(node: pytest.Item, name: str) -> Path:
    """Return the file of a test's snapshot: `__residuals__/test_model/test_loss.txt`."""
    test = node.nodeid.partition("::")[2].replace("::", ".")
    whole = f"{test}.{name}" if name else test
    safe = re.sub(r"[^\w.,=\[\]-]", "_", whole)
    if safe != whole or len(safe) > 150:
        safe = f"{safe[:150]}-{zlib.crc32(whole.encode()):08x}"
    return node.path.parent / FOLDER / node.path.stem / f"{safe}.txt"
