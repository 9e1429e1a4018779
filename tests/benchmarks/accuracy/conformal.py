"""Make the intervals around estimates from the conform set: `inspector/memory/intervals.json`.

    python -m tests.benchmarks.accuracy.conformal [--folder FOLDER] [--out FILE] [--as-collected]
    python -m tests.benchmarks.accuracy.conformal --test     how many of the test set are inside

Split conformal prediction. For each program of the conform set, which no rule was fitted to, the
residual is log(XLA / estimate), with the estimate of the code at hand (`--as-collected` takes the
one in the data, which needs no tracing); of the logarithm, since an error grows with the program.

- Programs of one family (one model with its checkpoints elsewhere) err alike, so the families are
  what is exchangeable, not the programs: each of the K families has the weight 1 / (K + 1), shared
  by its rows, and the rest is at infinity (hierarchical conformal prediction: Lee, Barber and
  Willett, 2023). With one row a family that is the usual quantile of rank ceil((K + 1) * 0.9). An
  unseen family's program is then inside with a probability of at least 90 %. It takes nine
  families; with fewer there is no interval.
- An estimate is more often too low than too high, or the other way round. So the interval begins as
  the 5th to the 95th percentile of the fit set, too narrow as rules are fitted to that, and the
  conform set says by how much both ends have to move (conformalized quantile regression: Romano,
  Patterson and Candes, 2019). It holds whatever it begins as. A percentile of the conform set on
  each side would hold as well, but takes 19 families and then ends at the extremes.
- It is made for each kind of program: with and without a loop, with and without a checkpoint. Where
  a kind has fewer than 30 programs, or too few families, it is merged with the one that has as many
  loops, and with all where that is not enough.
- Programs without a backward pass, and those that take a derivative of a derivative or of each
  example, have intervals of their own, never narrower than those of the others. They are made of
  the conform and the fit set, as few of them would end at the extremes.
- What a profile is for is pooled: each row is a program, a place and a jaxlib. A jaxlib with fewer
  than 10 programs that take as many gradients is left out.
- Both ends are 1 where they would leave the estimate outside of its own interval.
- For a compiler of another version both ends move by a factor: what nine of ten programs differ by
  at most between two of the versions measured, and 1.26 at least, since a scanned GPT that takes
  1.65 GiB on an H100 with jaxlib 0.10.2 takes 2.08 with 0.12.0.1.

It prints how many programs are inside an interval made without their family. With `--test` nothing
is made: of each place, jaxlib and kind it prints how many programs of the test set are inside the
intervals that are kept, which is for the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

from jaxresid.inspector.memory.intervals import ProgramKind, interval_of, kind_of
from tests.benchmarks.accuracy import rows
from tests.benchmarks.accuracy.rows import Row
from tests.benchmarks.accuracy.score import family, is_scored
from tests.benchmarks.accuracy.split import set_of

COVERAGE = Fraction(9, 10)
LEAST_PROGRAMS = 30  # of a kind
LEAST_OF_VERSION = 10
LEAST_FAMILIES = 9  # for a finite interval
LEAST_WIDENING = 1.26
OUT = Path(str(resources.files("jaxresid.inspector.memory") / "intervals.json"))


@dataclass(frozen=True, slots=True)
class Residual:
    """How far an estimate is off.

    Attributes:
      row: what was compiled; its `has_loop` and `is_checkpointed` are its kind.
      estimate_nbytes: the estimate.
    """

    row: Row
    estimate_nbytes: int

    @property
    def log(self) -> float:
        """The logarithm of XLA's figure over the estimate."""
        return math.log(self.row.peak_nbytes / self.estimate_nbytes)


@dataclass(frozen=True, slots=True)
class Kind:
    """The residuals of one kind of program; None: of both."""

    has_loop: bool | None
    is_checkpointed: bool | None
    residuals: tuple[Residual, ...] = ()

    def holds(self, row: Row) -> bool:
        """Return whether a row is of the kind."""
        return self.has_loop in (None, row.has_loop) and self.is_checkpointed in (
            None,
            row.is_checkpointed,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, default=rows.DATA)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--as-collected", action="store_true", help="do not estimate again")
    parser.add_argument("--test", action="store_true", help="check the test set, make nothing")
    options = parser.parse_args()
    measured = as_collected if options.as_collected else estimated_now
    if options.test:
        found = [row for row in rows.read_all(options.folder) if is_scored(row)]
        print_held(measured([row for row in found if set_of(family(row)) == "test"]))
        return
    found = list(rows.read_all(options.folder))
    residuals = measured(usable(found))
    fitted = measured([row for row in found if set_of(family(row)) == "fit" and is_scored(row)])
    options.out.write_text(
        json.dumps(calibrated(residuals, fitted), indent=2) + "\n", encoding="utf-8"
    )
    print_coverage(residuals, fitted)


def usable(found: Iterable[Row]) -> list[Row]:
    """Return the rows to make intervals from."""
    wanted = [row for row in found if set_of(family(row)) == "conform" and is_scored(row)]
    versions = defaultdict(set)
    for row in wanted:
        versions[profile_of(row), row.jaxlib, row.gradients].add(row.program)
    return [
        row
        for row in wanted
        if len(versions[profile_of(row), row.jaxlib, row.gradients]) >= LEAST_OF_VERSION
    ]


def profile_of(row: Row) -> str:
    """Return the profile that estimates for a row's place follow: `gpu`, `tpu`."""
    return row.place.partition(":")[0]


def as_collected(found: Iterable[Row]) -> list[Residual]:
    """Return the residuals of the estimates in the data."""
    return [Residual(row, row.estimate_nbytes) for row in found]


def estimated_now(found: Sequence[Row]) -> list[Residual]:
    """Return the residuals of the estimates of this code, and the kinds that it sees."""
    from tests.benchmarks.accuracy import corpus, estimates

    programs = {program.name: program for program in corpus.PROGRAMS}
    by_program = defaultdict(list)
    for row in found:
        by_program[row.program].append(row)
    residuals = []
    for number, (name, of_program) in enumerate(sorted(by_program.items()), 1):
        if name not in programs:
            sys.exit(f"{name}: the library that it is around is not installed")
        written = estimates.traced(programs[name], of_program[0].place)
        kind = kind_of(written.program)
        for row in of_program:
            seen = replace(
                row,
                has_loop=kind.has_loop,
                is_checkpointed=kind.is_checkpointed,
                gradients=kind.gradients,
            )
            nbytes = estimates.estimate_nbytes(written, row.place, row.jaxlib)
            residuals.append(Residual(seen, nbytes))
        estimates.forget()
        print(f"\restimated {number} of {len(by_program)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return residuals


def calibrated(residuals: Iterable[Residual], fitted: Iterable[Residual] = ()) -> dict[str, Any]:
    """Return what `intervals.json` holds, given the residuals of the conform and the fit set."""
    shapes = _by_profile(fitted)
    profiles = {
        name: calibration(each, shapes.get(name, ()))
        for name, each in sorted(_by_profile(residuals).items())
    }
    return {
        "coverage": float(COVERAGE),
        "profiles": {name: each for name, each in profiles.items() if each is not None},
    }


def calibration(
    residuals: Sequence[Residual], fitted: Sequence[Residual] = ()
) -> dict[str, Any] | None:
    """Return the entry of a profile; None where it has too few programs or families."""
    with_gradient = [r for r in residuals if r.row.gradients == "one"]
    found = kinds(with_gradient)
    if not found:
        return None
    entries = []
    for kind in found:
        low, high = bounds(
            by_family(kind.residuals),
            shape_of([r for r in fitted if r.row.gradients == "one"], kind),
        )
        entries.append(
            {
                "has_loop": kind.has_loop,
                "is_checkpointed": kind.is_checkpointed,
                "gradients": None,
                "programs": _programs(kind.residuals),
                "families": len(by_family(kind.residuals)),
                "low": math.floor(min(math.exp(low), 1.0) * 1000) / 1000,
                "high": math.ceil(max(math.exp(high), 1.0) * 1000) / 1000,
            }
        )
    own = {
        gradients: [r for r in (*residuals, *fitted) if r.row.gradients == gradients]
        for gradients in ("none", "many")
    }
    own = {name: each for name, each in own.items() if len(by_family(each)) >= LEAST_FAMILIES}
    owns = [own_entries(entries, name, each) for name, each in own.items()]
    of_rows = [residual.row for residual in with_gradient]
    return {
        **measured_with(with_gradient),
        "other_versions": math.ceil(widening(of_rows) * 100) / 100,
        "kinds": [*itertools.chain(*owns), *entries],
        "own": {name: measured_with(each) for name, each in own.items()},
    }


def measured_with(residuals: Sequence[Residual]) -> dict[str, Any]:
    """Return what residuals were measured with, as `IntervalBasis` has it."""
    of_rows = [residual.row for residual in residuals]
    peaks = [row.peak_nbytes for row in of_rows]
    return {
        "places": sorted({row.place for row in of_rows}),
        "compilers": _compilers(of_rows),
        "programs": _programs(residuals),
        "smallest_nbytes": min(peaks),
        "largest_nbytes": max(peaks),
    }


def own_entries(
    entries: Sequence[Mapping[str, Any]], gradients: str, residuals: Sequence[Residual]
) -> list[dict[str, Any]]:
    """Return the entries of programs with no gradient, or with many, given those of the others."""
    low, high = map(math.exp, bounds(by_family(residuals)))
    counts = {"programs": _programs(residuals), "families": len(by_family(residuals))}
    return [
        {
            **entry,
            **counts,
            "gradients": gradients,
            "low": min(entry["low"], math.floor(low * 1000) / 1000),
            "high": max(entry["high"], math.ceil(high * 1000) / 1000),
        }
        for entry in entries
    ]


def kinds(residuals: Sequence[Residual]) -> list[Kind]:
    """Return the residuals by kind, kinds with too few merged; none where all are too few."""
    found: list[Kind] = []
    for has_loop in (True, False):
        of_loops = [r for r in residuals if r.row.has_loop == has_loop]
        each = [
            Kind(has_loop, is_it, tuple(r for r in of_loops if r.row.is_checkpointed == is_it))
            for is_it in (True, False)
        ]
        whole = Kind(has_loop, None, tuple(of_loops))
        found += each if all(map(_is_enough, each)) else [whole]
    if all(map(_is_enough, found)):
        return found
    is_finite = len(by_family(residuals)) >= LEAST_FAMILIES
    return [Kind(None, None, tuple(residuals))] if is_finite else []


def _is_enough(kind: Kind) -> bool:
    """Return whether there are enough programs of a kind, and families for a finite interval."""
    return (
        _programs(kind.residuals) >= LEAST_PROGRAMS
        and len(by_family(kind.residuals)) >= LEAST_FAMILIES
    )


def by_family(residuals: Iterable[Residual]) -> list[list[float]]:
    """Return the logarithms of the residuals of each family."""
    grouped = _grouped(residuals, lambda residual: family(residual.row))
    return [[residual.log for residual in each] for each in grouped.values()]


def bounds(
    families: Sequence[Sequence[float]],
    shape: tuple[float, float] = (0.0, 0.0),
    coverage: Fraction = COVERAGE,
) -> tuple[float, float] | None:
    """Return the ends of the interval that the next family's value is in.

    Args:
      families: the values of each family.
      shape: the ends as other families have them; both are moved by the same.
      coverage: the probability to be inside, at least.

    Returns:
      The ends; None where there are too few families for a finite interval.
    """
    low, high = shape
    beyond = [[max(low - value, value - high) for value in each] for each in families]
    moved = _percentile(beyond, Fraction(1, len(families) + 1), coverage)
    return None if moved is None else (low - moved, high + moved)


def shape_of(fitted: Iterable[Residual], kind: Kind) -> tuple[float, float]:
    """Return the ends that the interval of a kind begins as, from the fit set.

    They are those of its kind; where there are few, of all; where there are few of these, zero.
    """
    rest = (1 - COVERAGE) / 2
    fitted = list(fitted)
    for each in ([r for r in fitted if kind.holds(r.row)], fitted):
        families = by_family(each)
        if len(families) >= LEAST_FAMILIES:
            weight = Fraction(1, len(families))
            low = _percentile(families, weight, rest)
            return low, _percentile(families, weight, 1 - rest)
    return 0.0, 0.0


def _percentile(
    families: Sequence[Sequence[float]], weight: Fraction, least: Fraction
) -> float | None:
    """Return the lowest value with so much at or below it; None where there is not as much in all.

    Args:
      families: the values of each family.
      weight: the weight of each family, shared by its values.
      least: what has to be at or below the value.
    """
    total = Fraction(0)
    weighted = ((value, weight / len(each)) for each in families for value in each)
    for value, part in sorted(weighted):
        total += part
        if total >= least:
            return value
    return None


def widening(found: Iterable[Row]) -> float:
    """Return the factor for compilers of other versions."""
    by_program = _grouped(found, lambda row: (row.program, row.place))
    peaks = ([row.peak_nbytes for row in each] for each in by_program.values() if len(each) > 1)
    differences = sorted(math.log(max(each) / min(each)) for each in peaks)
    if not differences:
        return LEAST_WIDENING
    return max(LEAST_WIDENING, math.exp(differences[math.ceil(COVERAGE * len(differences)) - 1]))


def inside(
    residuals: Sequence[Residual], shape: tuple[float, float] = (0.0, 0.0)
) -> tuple[int, int]:
    """Return how many residuals there are, and how many are inside an interval without them.

    The interval is made of the other families.
    """
    grouped = _grouped(residuals, lambda residual: family(residual.row))
    count = covered = 0
    for name, each in grouped.items():
        ends = bounds(by_family(r for r in residuals if family(r.row) != name), shape)
        if ends is not None:
            count += len(each)
            covered += sum(ends[0] <= residual.log <= ends[1] for residual in each)
    return count, covered


def print_coverage(residuals: Iterable[Residual], fitted: Iterable[Residual]) -> None:
    shapes = _by_profile(r for r in fitted if r.row.gradients == "one")
    with_gradient = [r for r in residuals if r.row.gradients == "one"]
    for profile, each in sorted(_by_profile(with_gradient).items()):
        found = kinds(each)
        if not found:
            families = len(by_family(each))
            print(f"{profile}: {_programs(each)} programs of {families} families are too few")
        for kind in found:
            shape = shape_of(shapes.get(profile, ()), kind)
            low, high = (math.exp(end) for end in bounds(by_family(kind.residuals), shape))
            count, covered = inside(kind.residuals, shape)
            print(
                f"{profile} {_text(kind)}: {_programs(kind.residuals)} programs of"
                f" {len(by_family(kind.residuals))} families, {low:.2f} to {high:.2f} times the"
                f" estimate; without their own family {covered} of {count} rows inside"
            )


def is_held(residual: Residual) -> bool | None:
    """Return whether XLA's figure is inside the interval that is kept; None where there is none."""
    row = residual.row
    kind = ProgramKind(row.has_loop, row.is_checkpointed, gradients=row.gradients)
    versions = {"jaxlib": row.jaxlib}
    around = interval_of(residual.estimate_nbytes, kind, profile_of(row), versions)
    return None if around is None else around.low_nbytes <= row.peak_nbytes <= around.high_nbytes


def print_held(residuals: Iterable[Residual]) -> None:
    answers = defaultdict(list)
    for residual in residuals:
        row, held = residual.row, is_held(residual)
        if held is None:
            continue
        answers[row.place, row.jaxlib, row.kind].append(held)
        answers[row.place, row.jaxlib, "all"].append(held)
        answers[profile_of(row), "all", "all"].append(held)
    for (place, jaxlib, kind), held in sorted(answers.items()):
        inside = f"{sum(held)} of {len(held)} inside"
        print(f"{place:12} {jaxlib:9} {kind:22} {inside:>16} {sum(held) / len(held):5.0%}")


def _text(kind: Kind) -> str:
    loops = {True: "scan", False: "straight", None: "all"}[kind.has_loop]
    return loops + {True: " checkpointed", False: " plain", None: ""}[kind.is_checkpointed]


def _programs(residuals: Iterable[Residual]) -> int:
    return len({residual.row.program for residual in residuals})


def _compilers(found: Sequence[Row]) -> Mapping[str, list[str]]:
    """Return the versions of each package that compiled: `{"jaxlib": ["0.11.2", "0.12.0.1"]}`."""
    versions = {"jaxlib": {row.jaxlib for row in found}}
    for row in found:
        for version in re.findall(r"\blibtpu (\S+?)(?:,|$)", row.compiler):
            versions.setdefault("libtpu", set()).add(version)
    return {name: sorted(each, key=_numbers) for name, each in versions.items()}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _by_profile(residuals: Iterable[Residual]) -> dict[str, list[Residual]]:
    return _grouped(residuals, lambda residual: profile_of(residual.row))


def _grouped(values: Iterable[Any], key: Any) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for value in values:
        found[key(value)].append(value)
    return found


if __name__ == "__main__":
    main()
