"""Make the intervals around ratios of times: `advice/timing/intervals.json`.

    python -m tests.benchmarks.times.conformal [--out FILE]
    python -m tests.benchmarks.times.conformal --test     how many of the test set are inside

Split conformal prediction, as for peaks; `tests/benchmarks/accuracy/conformal.py` says more. For
each pair of placements of checkpoints in one model the residual is the logarithm of the ratio of
their times as told (`ratios.py`) over that by the roofline of the code at hand, and a model is a
family of the weight 1 / (K + 1). A ratio has no direction, so the interval is a factor, which the
roofline's ratio is divided and multiplied by.

- It is made from the sets `fit` and `conform`. No constant of the roofline is fitted to times;
  rules of it were found in the fit set, and the test set says how the interval does with neither.
- It is for nine of ten pairs where there are nine models, which that takes; with four to eight for
  four of five. With fewer there is no interval, and times are not checked.
- Programs with a loop and without are pooled, where both were told of.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

from jaxresid.advice.timing.intervals import checked
from tests.benchmarks.accuracy.conformal import bounds
from tests.benchmarks.times.ratios import Pair, Told, modelled, pairs, sources

# The coverage, and how many models it takes at least.
COVERAGES = ((Fraction(9, 10), 9), (Fraction(4, 5), 4))
OUT = Path(str(resources.files("jaxresid.advice.timing") / "intervals.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--test", action="store_true", help="check the test set, make nothing")
    options = parser.parse_args()
    sets = ("test",) if options.test else ("fit", "conform")
    found = [(told, pairs(told, modelled(told, sets))) for told in sources()]
    if options.test:
        print_held(found)
        return
    made = [entry(told, each) for told, each in found]
    text = json.dumps({"checked": [each for each in made if each is not None]}, indent=2)
    options.out.write_text(text + "\n", encoding="utf-8")
    for (told, each), one in zip(found, made, strict=True):
        print_made(told, each, one)


def entry(told: Told, found: Sequence[Pair]) -> dict[str, Any] | None:
    """Return what `intervals.json` holds of a place; None where too few models were told of."""
    families = by_family(found)
    coverage = coverage_for(len(families))
    if coverage is None:
        return None
    return {
        "place": told.place,
        "by": told.by,
        "compilers": {name: [version] for name, version in told.versions.items()},
        "has_loop": None if any(pair.has_loop for pair in found) else False,
        "models": len(families),
        "pairs": len(found),
        "coverage": float(coverage),
        "factor": math.ceil(1000 * factor(families, coverage)) / 1000,
    }


def coverage_for(models: int) -> Fraction | None:
    """Return the share of pairs that so many models are enough for; None: for none."""
    return next((share for share, least in COVERAGES if models >= least), None)


def factor(families: Sequence[Sequence[float]], coverage: Fraction) -> float:
    """Return the factor of an interval, given the residuals of each family, enough of them."""
    ends = bounds(families, coverage=coverage)
    assert ends is not None
    return math.exp(ends[1])


def by_family(found: Iterable[Pair]) -> list[list[float]]:
    """Return the residuals of each family."""
    grouped = defaultdict(list)
    for pair in found:
        grouped[pair.family].append(pair.error)
    return list(grouped.values())


def print_made(told: Told, found: Sequence[Pair], made: dict[str, Any] | None) -> None:
    families = {pair.family for pair in found}
    if made is None:
        print(f"{told.place}, by a {told.by}: {len(families)} models are too few")
        return
    coverage = Fraction(made["coverage"]).limit_denominator(10)
    held = [
        abs(pair.error)
        <= math.log(factor(by_family(p for p in found if p.family != name), Fraction(4, 5)))
        for name in families
        for pair in found
        if pair.family == name and len(families) > 4
    ]
    print(
        f"{told.place}, by a {told.by}: {len(found)} pairs of {len(families)} models, {coverage} of"
        f" them within a factor of {made['factor']:.3f}; four of five of the other models hold"
        f" {sum(held)} of {len(held)}"
    )


def print_held(found: Iterable[tuple[Told, Sequence[Pair]]]) -> None:
    factors = {each.basis.place: each.basis for each in checked()}
    for told, each in found:
        basis = factors.get(told.place)
        if basis is None or not each:
            continue
        held = [abs(pair.error) <= math.log(basis.factor) for pair in each]
        families = [
            sum(abs(error) <= math.log(basis.factor) for error in errors) / len(errors)
            for errors in by_family(each)
        ]
        print(
            f"{told.place}: {sum(held)} of {len(held)} pairs of {len(families)} models inside, in"
            f" the mean of the models {sum(families) / len(families):.0%}; promised:"
            f" {basis.coverage:.0%}"
        )


if __name__ == "__main__":
    main()
