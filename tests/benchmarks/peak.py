"""How far the peak estimate is from what a compiler allocates.

    python tests/benchmarks/peak.py [--core] [--only TEXT] [--cache FILE]

Of each case in `zoo.py` the estimate for value and gradients is held against argument + output +
temporaries - aliased of the program that libtpu compiles for one v5p chip, which needs no TPU.
`--cache` is a file of JSON lines: what is in it is not compiled again, and what is compiled is
added to it at once, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import statistics
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import zoo
from compiled import compiled_nbytes

import jaxresid

ON = "tpu:v5p"
MIB = 1 << 20
# Placements whose compiled sizes are closer than this are not ranked.
APART = 0.05


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--core", action="store_true", help="the quickest cases of every kind")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--cache", type=Path, help="JSON lines of compiled sizes")
    options = parser.parse_args()
    if importlib.util.find_spec("libtpu") is None:
        sys.exit("this compiles with libtpu, which is not installed")
    versions = ", ".join(f"{p} {version(p)}" for p in ("jax", "jaxlib", "libtpu") if version(p))
    print(f"{ON}; {versions}")
    cases = [c for c in zoo.CASES if options.only in c.name and (c.core or not options.core)]
    if not cases:
        sys.exit(f"no case's name contains {options.only!r}")
    known = cached(options.cache, versions)
    rows = []
    print(f"{'case':30} {'estimate':>10} {'compiler':>10}   MiB  error")
    for case in cases:
        if case.name not in known:
            known[case.name] = compiled_size(case)
            if options.cache:
                line = {"case": case.name, "versions": versions, "nbytes": known[case.name]}
                with options.cache.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        actual = known[case.name]
        if actual is None:
            print(f"{case.name:30} {'-':>10} {'too big':>10}")
            continue
        estimate = estimated_size(case)
        rows.append((case, estimate, actual))
        error = 100 * (estimate / actual - 1)
        print(f"{case.name:30} {estimate / MIB:10.1f} {actual / MIB:10.1f}       {error:+6.1f} %")
        sys.stdout.flush()
    if rows:
        summarise(rows)


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cached(file, versions):
    """Compiled sizes by case, of these versions alone."""
    if file is None or not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {line["case"]: line["nbytes"] for line in lines if line["versions"] == versions}


def estimated_size(case):
    fun, args = case.build("tpu")
    return jaxresid.inspect(fun, on=ON)(*args).peak.nbytes


def compiled_size(case):
    return compiled_nbytes(*case.build("tpu"))


def summarise(rows):
    errors = [abs(estimate / actual - 1) for _, estimate, actual in rows]
    worst = max(range(len(rows)), key=errors.__getitem__)
    print(
        f"\n{len(rows)} cases: median error {100 * statistics.median(errors):.1f} %, "
        f"worst {100 * errors[worst]:.1f} % ({rows[worst][0].name})"
    )
    models = defaultdict(list)
    for case, estimate, actual in rows:
        models[case.model].append((case, estimate, actual))
    agreements = []
    pairs = wrong = 0
    for model, each in models.items():
        if len(each) > 2:
            rho = correlation(ranks([e for _, e, _ in each]), ranks([a for _, _, a in each]))
            agreements.append(rho)
            print(f"  {model:12} {len(each):3} placements, rank correlation {rho:.2f}")
        for (a, ea, ca), (b, eb, cb) in combinations(each, 2):
            if a.form != b.form or abs(ca - cb) <= APART * max(ca, cb):
                continue
            pairs += 1
            if (ea - eb) * (ca - cb) <= 0:
                wrong += 1
                print(f"    the other way round: {a.name}, {b.name}")
    if agreements:
        print(f"mean rank correlation of a model's placements {statistics.mean(agreements):.2f}")
    print(
        f"of {pairs} pairs of placements that the compiler separates by more than "
        f"{100 * APART:.0f} %, {pairs - wrong} are ranked alike"
    )


def ranks(values):
    """From 1; equal values share the mean of their ranks."""
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


def correlation(a, b):
    """Pearson's, which of ranks is Spearman's."""
    a, b = ([v - statistics.mean(x) for v in x] for x in (a, b))
    norm = (sum(v * v for v in a) * sum(v * v for v in b)) ** 0.5
    return sum(v * w for v, w in zip(a, b, strict=True)) / norm if norm else 1.0


if __name__ == "__main__":
    main()
