"""Make rows of what `tests/benchmarks/on_gpu.py` measured on a GPU that was there.

    python -m tests.benchmarks.accuracy.adopt FILE --on gpu:h100 [--set fit|conform|test]
        [--limit SECONDS] [--folder FOLDER]

XLA said there of each model of `zoo.py` what it takes. Here each is traced for its estimate, and
nothing is compiled; what is in the data already is left as it is. Run it in an environment with any
jaxlib: the rows carry that of FILE.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from jaxresid.xla.places import parse_place
from tests.benchmarks.accuracy import corpus, estimates, rows
from tests.benchmarks.accuracy.rows import Row
from tests.benchmarks.accuracy.split import SETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--on", required=True, help="the place that it was measured at")
    parser.add_argument("--set", choices=SETS, action="append", help="programs of these sets")
    parser.add_argument("--limit", type=float, default=float("inf"), help="in seconds")
    parser.add_argument("--folder", type=Path, default=rows.DATA)
    options = parser.parse_args()
    start = time.monotonic()
    measured = [json.loads(line) for line in options.file.read_text().splitlines()]
    measured = {f"zoo:{it['case']}": it for it in measured if it["kind"] == "run" and "temp" in it}
    for program in corpus.PROGRAMS:
        found = measured.get(program.name)
        if found is None or (options.set and program.set not in options.set):
            continue
        file = rows.file_of(options.on, found["jax"], options.folder)
        if program.name in rows.read(file):
            continue
        if time.monotonic() - start > options.limit:
            print(f"the limit of {options.limit:g} s is over")
            return
        rows.append(file, adopted(program, found, options.on))
        print(program.name, flush=True)


def adopted(program: corpus.Program, found: dict, place: str) -> Row:
    """Return the row of a program of which `on_gpu.py` wrote a line."""
    written = estimates.traced(program, place)
    nbytes = found["arguments"] + found["output"] + found["temp"] - found["alias"]
    where = parse_place(place)
    row = Row(
        program.name,
        place,
        found["jax"],
        f"jaxlib {found['jax']}, {found['device']}",
        estimates.has_loop(written),
        program.is_checkpointed,
        estimates.estimate_nbytes(written, place, found["jax"]),
        nbytes,
        where.memory_nbytes is None or nbytes <= where.memory_nbytes,
        found["compile_s"],
    )
    estimates.forget()
    return row


if __name__ == "__main__":
    main()
