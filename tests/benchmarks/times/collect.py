"""Ask a TPU's compiler how long it takes a program to run, and keep what it says as data.

    python -m tests.benchmarks.times.collect [--on tpu:v5p] [--only TEXT] [--set fit|conform|test]
        [--limit SECONDS] [--timeout SECONDS]

Run it with libtpu, in the root of the repository. The programs are those of the corpus without a
loop, since XLA counts the body of one once: random models of few layers first, as XLA's cost
analysis needs the whole executable, 10 s a layer, then those of `zoo.py`. A row is written as soon
as it is known, in `data/`, and what is there is not compiled again. libtpu 0.0.52 has no model of
some instructions, many of them on a v5e, and counts them as -1 s: a sum below zero is kept as an
error. Nothing is begun after `--limit`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import JaxresidError, summary
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.xla.places import for_devices, parse_place
from tests.benchmarks.accuracy import corpus, estimates, rows
from tests.benchmarks.accuracy.corpus import Program
from tests.benchmarks.accuracy.split import SETS

DATA = Path(__file__).parent / "data"
# Another process may compile as well; and there is no metadata server to ask, for minutes.
ENVIRONMENT = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1"}
FIRST = ("none", "nothing", "dots", "names")  # of a model's placements
SHORT, LONG = re.compile(r"; [24] layers unrolled"), re.compile("accumulated|image|recurrence")
FIGURES = {"optimal_seconds": "seconds", "flops": "flops", "bytes accessed": "nbytes"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--on", default="tpu:v5p", help="a place: tpu:v5p, tpu:v6e")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--set", choices=SETS, help="programs of one set")
    parser.add_argument("--limit", type=float, default=float("inf"), help="in seconds")
    parser.add_argument("--timeout", type=float, default=300.0, help="of one compile, in seconds")
    options = parser.parse_args()
    deadline = time.monotonic() + options.limit
    os.environ.update(ENVIRONMENT)
    file = rows.file_of(options.on, jax_compat.jaxlib_version(), DATA)
    DATA.mkdir(exist_ok=True)
    known = {row["program"] for row in read(file)}
    for program in chosen():
        is_wanted = options.only in program.name and options.set in (None, program.set)
        if not is_wanted or program.name in known:
            continue
        if time.monotonic() > deadline:
            print(f"the limit of {options.limit:g} s is over")
            return
        row = {"program": program.name, **asked(program.name, options.on, options.timeout)}
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        print(row, flush=True)


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none where there is no file."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def chosen() -> list[Program]:
    """Return straight programs in the order in which to compile them."""

    def order(program: Program) -> int:
        placement = program.name.rpartition("/")[2]
        return FIRST.index(placement) if placement in FIRST else len(FIRST)

    short = [p for p in corpus.PROGRAMS if SHORT.search(p.text) and not LONG.search(p.text)]
    models = [p for p in corpus.PROGRAMS if p.name.startswith("zoo:") and "/unroll/" in p.name]
    return [*sorted(short, key=lambda program: program.family), *sorted(models, key=order)]


def asked(name: str, place: str, timeout_s: float) -> dict[str, Any]:
    """Return what XLA says of a program, compiled in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(name, place, theirs))
    child.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(timeout_s) else {"error": f"longer than {timeout_s:g} s"}
    except EOFError:
        found = {"error": "the process died"}
    child.kill()
    child.join()
    return found


def _in_child(name: str, place: str, pipe: Connection) -> None:
    try:
        pipe.send(dict(_counted(next(p for p in corpus.PROGRAMS if p.name == name), place)))
    except (JaxresidError, RuntimeError, ValueError) as e:
        pipe.send({"error": summary(e)[:200]})


def _counted(program: Program, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the figures of a program by name, and what compiled it."""
    place = for_devices(parse_place(text), 1)
    written = estimates.traced(program, text)
    if estimates.has_loop(written):
        raise ValueError("it has a loop")
    module = lowered(written.trace, place.platform)
    devices = jax_compat.topology_devices(place.platform, place.topology, place.target_config)
    began = time.monotonic()
    executable = jax_compat.compiled(module.code, devices[:1], {})
    analysis = executable.cost_analysis()
    if analysis["optimal_seconds"] <= 0:
        raise ValueError("XLA has no model of the time of some instructions")
    yield from ((ours, analysis[theirs]) for theirs, ours in FIGURES.items())
    yield "compile_s", round(time.monotonic() - began, 1)
    yield "jaxlib", jax_compat.jaxlib_version()
    yield "libtpu", _libtpu()


def _libtpu() -> str:
    from importlib.metadata import version

    return version("libtpu")


if __name__ == "__main__":
    main()
