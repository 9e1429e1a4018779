"""What was compiled: one row for each program, place and jaxlib, as JSON lines under `data/`.

A file holds the rows of one place and one jaxlib, one row for a program, the last one where there
are several.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from jaxresid.inspector.memory.intervals import Gradients

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Row:
    """What a compiler made of a program.

    Attributes:
      program: the program's name.
      place: the place that it was compiled for.
      jaxlib: the version of jaxlib.
      compiler: the compiler and its version, as `jaxresid compile` names it.
      has_loop: whether it has a scan or a while loop.
      is_checkpointed: whether it has a checkpoint.
      estimate_nbytes: the static estimate when it was compiled; None where tracing failed.
      peak_nbytes: argument + output + temporaries - aliased; where it does not fit what XLA says
        that it needs; None where the compiler gave no answer.
      fits: whether it fits the place's memory.
      seconds: the seconds of the compile.
      error: why there is no peak: `took longer than 60 s`.
      gradients: how many it takes, as `intervals.ProgramKind` has it.
    """

    program: str
    place: str
    jaxlib: str
    compiler: str
    has_loop: bool
    is_checkpointed: bool
    estimate_nbytes: int | None = None
    peak_nbytes: int | None = None
    fits: bool | None = None
    seconds: float | None = None
    error: str | None = None
    gradients: Gradients = "one"

    @property
    def kind(self) -> str:
        """Its kind: `scan` or `straight`, `checkpointed` or `plain`, or what it takes gradients of.

        With no gradient it is `forward`, with those of gradients or of each example `many`.
        """
        loop = "scan" if self.has_loop else "straight"
        if self.gradients != "one":
            return f"{'forward' if self.gradients == 'none' else 'many'} {loop}"
        return f"{loop} {'checkpointed' if self.is_checkpointed else 'plain'}"


def file_of(place: str, jaxlib: str, folder: Path = DATA) -> Path:
    """Return the file of a place and a jaxlib."""
    return folder / f"{place.replace(':', '-')}-jaxlib-{jaxlib}.jsonl"


def read(file: Path) -> dict[str, Row]:
    """Return the rows of a file by program; none where there is no file."""
    if not file.exists():
        return {}
    names = {field.name for field in fields(Row)}
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except ValueError:  # what a collector that was killed has begun
            continue
        found[values["program"]] = Row(**{k: v for k, v in values.items() if k in names})
    return found


def read_all(folder: Path = DATA) -> Iterator[Row]:
    """Yield all rows."""
    for file in sorted(folder.glob("*.jsonl")):
        yield from read(file).values()


def append(file: Path, row: Row) -> None:
    """Add a row to a file, below what a collector that was killed may have begun."""
    line = json.dumps({k: v for k, v in asdict(row).items() if v is not None}) + "\n"
    held = file.read_bytes() if file.exists() else b""
    with file.open("a", encoding="utf-8") as out:
        out.write(line if held.endswith(b"\n") or not held else "\n" + line)
