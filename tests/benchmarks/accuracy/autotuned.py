"""What an H100 needs for a program, and what its compiler says without one, in two ways.

    python -m tests.benchmarks.accuracy.autotuned collect [--every N] [--limit SECONDS]
    python -m tests.benchmarks.accuracy.autotuned judge

With a GPU XLA times kernels for each matmul and takes the fastest; without one it cannot. `collect`
takes the programs of the sets `fit` and `conform` that were compiled on an H100 (`on_gpu.py`,
`adopt.py`), by name, every Nth of them, and compiles each without a GPU as XLA chooses then, which
is Triton's matmuls, and with those of cuBLAS alone. Run it in an environment with the jaxlib of
that H100. What is in `data/autotuned/` is not compiled again, but for what failed. `judge` prints
what the chip needed over what either says, and over the larger.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxresid import jax_compat
from jaxresid.advice.compile.ahead_of_time import CompileSettings, compiled_rows
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.cache import CompileCache, default_directory
from tests.benchmarks.accuracy import corpus, estimates, rows

PLACE = "gpu:h100"
DATA = rows.DATA / "autotuned"
FLAGS = {"triton_nbytes": "true", "cublas_nbytes": "false"}
ABOVE = 1.03


@dataclass(frozen=True, slots=True)
class Row:
    """What XLA says of a program with a GPU and without one, in bytes.

    Attributes:
      program: the program's name.
      chip_nbytes: on the GPU, with kernels that were timed there.
      triton_nbytes: without it, with Triton's matmuls; None where it did not compile.
      cublas_nbytes: without it, with those of cuBLAS alone; None where it did not compile.
    """

    program: str
    chip_nbytes: int
    triton_nbytes: int | None
    cublas_nbytes: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("--every", type=int, default=4, help="take every Nth program")
    collecting.add_argument("--limit", type=float, default=float("inf"), help="in seconds")
    commands.add_parser("judge")
    options = parser.parse_args()
    if options.command == "collect":
        collect(options.every, options.limit)
    else:
        for file in sorted(DATA.glob("*.jsonl")):
            print(f"{file.stem}\n")
            print(judged(list(read(file).values())))


def read(file: Path) -> dict[str, Row]:
    """Return the rows of a file by program; none where there is no file."""
    if not file.exists():
        return {}
    found = [Row(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row.program: row for row in found}


def chosen(measured: Mapping[str, rows.Row], every: int) -> list[corpus.Program]:
    """Return every Nth program that was measured on the chip, by name, but for the test set."""
    programs = sorted(corpus.PROGRAMS, key=lambda program: program.name)
    return [p for p in programs if p.name in measured and p.set != "test"][::every]


def collect(every: int, limit_s: float) -> None:
    """Append the rows that the data lacks."""
    start, version = time.monotonic(), jax_compat.jaxlib_version()
    measured = rows.read(rows.file_of(PLACE, version))
    file = rows.file_of(PLACE, version, DATA)
    DATA.mkdir(parents=True, exist_ok=True)
    known = read(file)
    for program in chosen(measured, every):
        row = known.get(program.name)
        if row is not None and None not in (row.triton_nbytes, row.cublas_nbytes):
            continue
        if time.monotonic() - start > limit_s:
            print(f"the limit of {limit_s:g} s is over")
            return
        row = asked(program, measured[program.name].peak_nbytes)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(row)) + "\n")
        print(row, flush=True)


def asked(program: corpus.Program, chip_nbytes: int) -> Row:
    """Return the row of a program that takes so much on the chip."""
    written = estimates.traced(program, PLACE)
    found = {}
    for name, value in FLAGS.items():
        settings = CompileSettings(
            flags=(("xla_gpu_enable_triton_gemm", value),),
            cache=CompileCache(default_directory()),
        )
        (((compiled),),) = compiled_rows([written], [parse_place(PLACE)], settings)
        found[name] = compiled.peak_nbytes
    estimates.forget()
    return Row(program.name, chip_nbytes, **found)


def judged(found: Sequence[Row]) -> str:
    """Return the table of what the chip needed over what was said without it."""
    return "\n".join(_lines(found))


def _lines(found: Sequence[Row]) -> Iterator[str]:
    yield f"{'chip /':16} {'programs':>8} {'median':>7} {'least':>7} {'most':>7} {'> 3 %':>6}"
    for label, ratios in ratios_of(found).items():
        above = sum(ratio > ABOVE for ratio in ratios.values())
        most = max(ratios, key=lambda name: ratios[name])
        values = list(ratios.values())
        yield (
            f"{label:16} {len(values):8} {statistics.median(values):7.3f} {min(values):7.3f}"
            f" {ratios[most]:7.3f} {above:6}  {most}"
        )


def ratios_of(found: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return by what it is held against: program -> what the chip needed over that."""
    said = {
        "Triton": lambda row: row.triton_nbytes,
        "cuBLAS": lambda row: row.cublas_nbytes,
        "larger of both": lambda row: max(row.triton_nbytes, row.cublas_nbytes),
    }
    compiled = [row for row in found if row.triton_nbytes and row.cublas_nbytes]
    return {
        label: {row.program: row.chip_nbytes / figure(row) for row in compiled}
        for label, figure in said.items()
    }


if __name__ == "__main__":
    main()
