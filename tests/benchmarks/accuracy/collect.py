"""Compile the corpus for places that need not be here, and keep what XLA says as data.

    python -m tests.benchmarks.accuracy.collect --on gpu:h100 --on tpu:v5e [--only REGEX]
        [--set fit|conform|test] [--limit SECONDS] [--timeout SECONDS] [--again] [--folder FOLDER]

Run it in an environment with the jaxlib to ask, in the root of the repository: with libtpu for
TPUs, with jax-cuda12-plugin, jax-cuda12-pjrt and nvidia-cuda-nvcc-cu12 for GPUs, and with flax,
equinox and optax for the programs around them. What is in `data/` is not compiled again (with
`--again` what failed or took too long is), and each row is written as soon as it is known, so that
an interrupted run goes on. One compile runs at a time; one that takes longer than `--timeout`
(60 s, which a busy machine needs more of) is kept as such. Nothing is begun after `--limit`. No
figures are printed: the test set is not to be looked at.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxresid import jax_compat
from jaxresid.advice.compile.ahead_of_time import CompileSettings, compiled_rows
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.memory.intervals import kind_of
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.cache import CompileCache, default_directory
from tests.benchmarks.accuracy import corpus, estimates, rows
from tests.benchmarks.accuracy.corpus import Program
from tests.benchmarks.accuracy.rows import Row
from tests.benchmarks.accuracy.split import SETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--on", action="append", required=True, help="a place: gpu:h100, tpu:v5e")
    parser.add_argument("--only", default="", metavar="REGEX", help="programs whose name has this")
    parser.add_argument("--set", choices=SETS, help="programs of one set")
    parser.add_argument("--limit", type=float, default=float("inf"), help="in seconds")
    parser.add_argument("--timeout", type=float, default=60.0, help="of one compile, in seconds")
    parser.add_argument("--again", action="store_true", help="what gave no figures before, too")
    parser.add_argument("--folder", type=Path, default=rows.DATA)
    options = parser.parse_args()
    programs = [
        program
        for program in corpus.PROGRAMS
        if re.search(options.only, program.name) and options.set in (None, program.set)
    ]
    collect(
        programs,
        options.on,
        options.folder,
        lambda program, places: compiled(program, places, options.timeout),
        limit_s=options.limit,
        again=options.again,
    )


def collect(
    programs: Sequence[Program],
    places: Sequence[str],
    folder: Path,
    compile_for: Callable[[Program, Sequence[str]], Sequence[Row]],
    *,
    limit_s: float = float("inf"),
    again: bool = False,
) -> None:
    """Append the rows that the files of a folder lack.

    Args:
      programs: the programs, in the order in which to compile them.
      places: the places to compile each for.
      folder: where the files are.
      compile_for: compiles a program for places and returns their rows.
      limit_s: seconds after which nothing is begun.
      again: whether to compile again what gave no figures.
    """
    start, version = time.monotonic(), jax_compat.jaxlib_version()
    files = {place: rows.file_of(place, version, folder) for place in places}
    folder.mkdir(parents=True, exist_ok=True)
    known = {place: rows.read(file) for place, file in files.items()}
    for number, program in enumerate(programs, 1):
        todo = [
            place
            for place in places
            if program.name not in known[place]
            or (again and known[place][program.name].peak_nbytes is None)
        ]
        if not todo:
            continue
        if time.monotonic() - start > limit_s:
            print(f"the limit of {limit_s:g} s is over", flush=True)
            return
        began = time.monotonic()
        for row in compile_for(program, todo):
            rows.append(files[row.place], row)
            if row.error:
                print(f"    {row.place}: {row.error}")
        took = time.monotonic() - began
        print(f"{number}/{len(programs)} {program.name} {took:.1f} s", flush=True)


def compiled(program: Program, places: Sequence[str], timeout_s: float) -> list[Row]:
    """Return what the compilers of some places make of a program."""
    settings = CompileSettings(
        timeout_s=timeout_s, workers=1, cache=CompileCache(default_directory())
    )
    version = jax_compat.jaxlib_version()
    try:
        written = estimates.traced(program, places[0])
        kind = kind_of(written.program)
        (found,) = compiled_rows([written], [parse_place(place) for place in places], settings)
    except (JaxresidError, TypeError, ValueError) as e:
        error = " ".join(str(e).split())[:200]
        return [
            Row(program.name, place, version, "", False, program.is_checkpointed, error=error)
            for place in places
        ]
    finally:
        estimates.forget()
    return [
        Row(
            program.name,
            place,
            version,
            row.compiler,
            kind.has_loop,
            program.is_checkpointed,
            row.estimate_nbytes,
            row.peak_nbytes,
            row.fits,
            None if row.seconds is None else round(row.seconds, 1),
            row.error and row.error[:200],
            kind.gradients,
        )
        for place, row in zip(places, found, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
