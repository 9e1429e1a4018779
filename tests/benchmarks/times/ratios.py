"""Ratios of seconds between placements of checkpoints in one model: as told, and by the roofline.

    python -m tests.benchmarks.times.ratios [--on TEXT] [--test] [--misses N]

What tells is either a chip that ran the programs (`tests/benchmarks/on_gpu.py`) or a TPU's compiler
(`collect.py`), which is a model as well. Of each source and set it prints how far the roofline's
ratio is from the one told, for all pairs of placements of one model, and the largest misses of the
fit set. The test set is left out without `--test`. It traces each program: a second or two each.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from jaxresid.advice.timing.chips import chip_of
from jaxresid.advice.timing.roofline import seconds
from jaxresid.inspector.memory.compilers import profile_of
from jaxresid.inspector.memory.lowered import lower
from jaxresid.xla.places import parse_place
from tests.benchmarks.accuracy import corpus, estimates
from tests.benchmarks.accuracy.split import SETS, set_of
from tests.benchmarks.times import collect

ON_H100 = Path(__file__).parents[2] / "data/gpu/h100-sxm-jax-0.11.2.jsonl"


@dataclass(frozen=True, slots=True)
class Told:
    """The seconds that programs of a place take, as something else than the roofline has them.

    Attributes:
      place: the place.
      by: who says so: a `chip`, or a `compiler` by its cost analysis.
      versions: the packages that compiled them, and their versions.
      seconds: program -> seconds.
    """

    place: str
    by: str
    versions: Mapping[str, str]
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two placements of checkpoints in one model.

    Attributes:
      family: the model, in whatever form.
      programs: the two.
      told: the logarithm of the first's seconds over the second's, as told.
      ours: that by the roofline.
    """

    family: str
    programs: tuple[str, str]
    told: float
    ours: float

    @property
    def error(self) -> float:
        """The logarithm of what was told over the roofline's."""
        return self.told - self.ours

    @property
    def has_loop(self) -> bool:
        """Whether both have a scan; a model of the zoo says so in its name."""
        return "/scan/" in self.programs[0]

    @property
    def set(self) -> str:
        """The set that its model is in."""
        return set_of(self.family)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--on", default="", help="places that contain this")
    parser.add_argument("--test", action="store_true", help="look at the test set as well")
    parser.add_argument("--misses", type=int, default=10, help="how many to name of the fit set")
    options = parser.parse_args()
    sets = SETS if options.test else SETS[:2]
    for told in sources():
        if options.on in told.place:
            found = pairs(told, modelled(told, sets))
            print(f"\n{told.place}, by a {told.by}")
            for each in sets:
                print_errors(each, [pair for pair in found if pair.set == each])
            print_misses([pair for pair in found if pair.set == "fit"], options.misses)


def sources() -> list[Told]:
    """Return everything that was told."""
    rows = [json.loads(line) for line in ON_H100.read_text(encoding="utf-8").splitlines()]
    timed = {f"zoo:{r['case']}": r["seconds"] for r in rows if r["kind"] == "time"}
    found = [Told("gpu:h100", "chip", {"jaxlib": rows[0]["jax"]}, timed)]
    for file in sorted(collect.DATA.glob("*.jsonl")):
        rows = [row for row in collect.read(file) if "seconds" in row]
        if rows:
            place = ":".join(file.name.split("-")[:2])
            versions = {name: rows[0][name] for name in ("jaxlib", "libtpu")}
            by = {row["program"]: row["seconds"] for row in rows}
            found.append(Told(place, "compiler", versions, by))
    return found


def modelled(told: Told, sets: Iterable[str]) -> dict[str, float]:
    """Return the roofline's seconds by program, of those that something was told of."""
    place = parse_place(told.place)
    chip = chip_of(place)
    programs = [p for p in corpus.PROGRAMS if p.name in told.seconds and p.set in sets]
    found = {}
    for number, program in enumerate(programs, 1):
        written = estimates.traced(program, told.place)
        lowered = lower(written.program, profile_of(place, told.versions["jaxlib"]))
        found[program.name] = seconds(lowered, chip).total
        estimates.forget()
        print(f"\rtraced {number} of {len(programs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def pairs(told: Told, ours: Mapping[str, float]) -> list[Pair]:
    """Return all pairs of placements of one model in one form, of programs in `ours`."""
    models = defaultdict(list)
    for name in ours:
        models[name.rpartition("/")[0]].append(name)
    return [
        Pair(
            a.partition("/")[0],
            (a, b),
            math.log(told.seconds[a] / told.seconds[b]),
            math.log(ours[a] / ours[b]),
        )
        for each in models.values()
        for a, b in combinations(each, 2)
    ]


def print_errors(name: str, found: Sequence[Pair]) -> None:
    errors = sorted(abs(math.expm1(pair.error)) for pair in found)
    if errors:
        models = len({pair.family for pair in found})
        print(
            f"{name:8} {len(found):4} pairs of {models:2} models: off by"
            f" {statistics.median(errors):.1%} in the median, nine of ten within"
            f" {errors[math.ceil(0.9 * len(errors)) - 1]:.1%}, {errors[-1]:.1%} at worst"
        )


def print_misses(found: Sequence[Pair], count: int) -> None:
    for pair in sorted(found, key=lambda pair: -abs(pair.error))[:count]:
        a, b = pair.programs
        print(
            f"  {a} over {b.rpartition('/')[2]}: {math.exp(pair.told):.2f} told,"
            f" {math.exp(pair.ours):.2f} by the roofline"
        )


if __name__ == "__main__":
    main()
