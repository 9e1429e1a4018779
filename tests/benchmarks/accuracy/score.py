"""How far the static estimate is from what the compilers say.

    python -m tests.benchmarks.accuracy.score [--on gpu:h100] [--jaxlib 0.12.0.1] [--now] [--test]
        [--only REGEX] [--misses N] [--folder FOLDER]

For each set, place, jaxlib and kind of program: how many, the median, 90th percentile and worst of
|estimate / XLA - 1|, and of the pairs of placements of checkpoints in one model that XLA has more
than 5 % apart the share that the estimate ranks as XLA does. The largest misses are named of the
fit set alone. The test set is only scored with `--test`, last.

The estimates are those of the code that collected the rows; `--now` makes them anew for each row's
jaxlib, which traces each program with the JAX at hand (a few seconds each). Programs that do not
fit their place are left out, since a compiler that runs out of memory says no exact figure, and so
are those outside of 0.5 to 40 GiB: how many is printed.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from tests.benchmarks.accuracy import rows
from tests.benchmarks.accuracy.rows import Row
from tests.benchmarks.accuracy.split import set_of

GIB = 1 << 30
SMALLEST, LARGEST = GIB // 2, 40 * GIB
# Placements whose compiled sizes are closer than this are not ranked.
APART = 0.05


@dataclass(frozen=True, slots=True)
class Score:
    """How far estimates are off.

    Attributes:
      count: the number of programs.
      median, ninth, worst: of |estimate / XLA - 1|; the second is the 90th percentile.
      low: the share of programs whose estimate is below XLA's figure.
      pairs: the number of pairs of placements that are ranked.
      ranked: of those the number that the estimate ranks as the compiler does.
    """

    count: int
    median: float
    ninth: float
    worst: float
    low: float
    pairs: int
    ranked: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--on", help="one place alone")
    parser.add_argument("--jaxlib", help="one version alone")
    parser.add_argument("--only", default="", metavar="REGEX", help="programs whose name has this")
    parser.add_argument("--now", action="store_true", help="estimate again, with this code")
    parser.add_argument("--test", action="store_true", help="score the test set as well")
    parser.add_argument("--misses", type=int, default=10, help="how many to name of the fit set")
    parser.add_argument("--folder", type=Path, default=rows.DATA)
    options = parser.parse_args()
    sets = ("fit", "conform", "test") if options.test else ("fit", "conform")
    found = [
        row
        for row in rows.read_all(options.folder)
        if set_of(family(row)) in sets
        and re.search(options.only, row.program)
        and options.on in (None, row.place)
        and options.jaxlib in (None, row.jaxlib)
    ]
    if options.now:
        found = estimated_now(found)
    for name in sets:
        print_set(name, [row for row in found if set_of(family(row)) == name])
    if "fit" in sets and options.misses:
        print_misses([row for row in found if set_of(family(row)) == "fit"], options.misses)


def family(row: Row) -> str:
    """Return the family of a row's program, as `corpus.Program.family`."""
    return row.program.partition("/")[0]


def is_scored(row: Row) -> bool:
    """Return whether a row has both figures, of a program that fits and has a usual size."""
    if row.peak_nbytes is None or row.estimate_nbytes is None or row.fits is False:
        return False
    return SMALLEST <= row.peak_nbytes <= LARGEST


def error(row: Row) -> float:
    """Return estimate / XLA - 1."""
    return row.estimate_nbytes / row.peak_nbytes - 1


def score(found: Sequence[Row]) -> Score:
    """Return the score of rows of one place and one jaxlib; there is at least one."""
    errors = sorted(abs(error(row)) for row in found)
    models = defaultdict(list)
    for row in found:
        models[row.program.rpartition("/")[0]].append(row)
    pairs = ranked = 0
    for each in models.values():
        for a, b in combinations(each, 2):
            difference = a.peak_nbytes - b.peak_nbytes
            if abs(difference) > APART * max(a.peak_nbytes, b.peak_nbytes):
                pairs += 1
                ranked += (a.estimate_nbytes - b.estimate_nbytes) * difference > 0
    return Score(
        len(errors),
        statistics.median(errors),
        errors[math.ceil(0.9 * len(errors)) - 1],
        errors[-1],
        sum(error(row) < 0 for row in found) / len(found),
        pairs,
        ranked,
    )


def by_place(found: Iterable[Row]) -> Mapping[tuple[str, str], list[Row]]:
    """Return rows by place and jaxlib."""
    grouped = defaultdict(list)
    for row in found:
        grouped[row.place, row.jaxlib].append(row)
    return dict(sorted(grouped.items()))


def print_set(name: str, found: Sequence[Row]) -> None:
    print(f"\n{name} set")
    print(
        f"{'place':10} {'jaxlib':9} {'kind':22} {'programs':>8} {'median':>7} {'90 %':>7}"
        f" {'worst':>7} {'too low':>8} {'ranked alike':>16}"
    )
    for (place, jaxlib), each in by_place(found).items():
        scored = [row for row in each if is_scored(row)]
        kinds = sorted({row.kind for row in scored})
        for kind in (*kinds, "all"):
            of_kind = [row for row in scored if kind in (row.kind, "all")]
            if of_kind:
                print(f"{place:10} {jaxlib:9} {kind:22} {_cells(score(of_kind))}")
        failed = sum(row.peak_nbytes is None for row in each)
        too_big = sum(row.fits is False for row in each)
        others = len(each) - len(scored) - failed - too_big
        print(
            f"{place:10} {jaxlib:9} not scored: {failed} without figures, {too_big} do not fit,"
            f" {others} of another size"
        )


def _cells(found: Score) -> str:
    ranked = f"{found.ranked} of {found.pairs}"
    if found.pairs:
        ranked += f" {found.ranked / found.pairs:4.0%}"
    return (
        f"{found.count:8} {found.median:7.1%} {found.ninth:7.1%} {found.worst:7.1%}"
        f" {found.low:8.0%} {ranked:>16}"
    )


def print_misses(found: Sequence[Row], count: int) -> None:
    for (place, jaxlib), each in by_place(found).items():
        scored = sorted((row for row in each if is_scored(row)), key=lambda row: -abs(error(row)))
        print(f"\nlargest misses of the fit set, {place}, jaxlib {jaxlib}")
        for row in scored[:count]:
            print(
                f"  {row.program:36} {row.kind:22} XLA {row.peak_nbytes / GIB:6.2f} GiB,"
                f" estimate {row.estimate_nbytes / GIB:6.2f} ({error(row):+.0%})"
            )


def estimated_now(found: Sequence[Row]) -> list[Row]:
    """Return the rows with the estimates of this code, as the JAX at hand traces the programs."""
    from tests.benchmarks.accuracy import corpus, estimates

    programs = {program.name: program for program in corpus.PROGRAMS}
    wanted = defaultdict(set)
    for row in found:
        if is_scored(row):
            wanted[row.program].add((row.place, row.jaxlib))
    nbytes = {}
    for number, (name, compilers) in enumerate(sorted(wanted.items()), 1):
        if name in programs:
            for each, n in estimates.estimated(programs[name], sorted(compilers)).items():
                nbytes[name, *each] = n
        print(f"\restimated {number} of {len(wanted)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [
        replace(row, estimate_nbytes=nbytes.get((row.program, row.place, row.jaxlib)))
        for row in found
    ]


if __name__ == "__main__":
    main()
