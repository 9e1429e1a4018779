"""The estimate of one device's memory against what XLA says, for programs split over a mesh.

    python tests/benchmarks/sharded.py [--on gpu:h100:8|cpu] [--policies none,dots,nothing] [NAME]
    python tests/benchmarks/sharded.py --on gpu:h100:8 --large --write

Prints one row per case and policy, then the errors. With `--write` the factors between estimate and
XLA's figure become the intervals of programs over a mesh, `inspector/memory/mesh_intervals.json`:
the smallest and the largest of each kind of program, as these are too few to say what an unseen one
would have. On a CPU nothing but arguments and outputs is
estimated. A TPU keeps what fits in its on-chip memory out of the figures, so that cases as small as
these say something about arguments there and little about temporaries.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from importlib import resources
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sharded import CASES, LARGE, POLICIES

from jaxresid import jax_compat
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.memory.compilers import profile_of
from jaxresid.inspector.memory.intervals import calibrations, kind_of
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import OpSources, peak
from jaxresid.inspector.report import inspection
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.xla.job import Job
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.process import execute

# Below, a TPU's on-chip memory holds much of a program.
LEAST_NBYTES = 2**29


def figures(case, policy, on):
    """Bytes of one device: estimated (of a compiled and of a traced function) and XLA's."""
    mesh = case.mesh()
    given = {"mesh": mesh, "on": on}
    found = inspection(Question(case.under(policy), case.inputs(mesh), **given))
    place, estimate = parse_place(on), found.report.peak
    # Arguments and outputs are the same by every compiler's rules.
    outside = peak(lower(found.subject.program, profile_of(place)), OpSources(found.trace)).peak
    said = execute(Job(lowered(found.trace, place.platform), place))
    if said.error is not None:
        raise SystemExit(f"{case.name}: {said.error}")
    stats, kind = said.stats, kind_of(found.subject.program)
    # Of what does not fit, no more is known than what it takes.
    total = said.required_nbytes
    if stats:
        parts = ("argument_nbytes", "output_nbytes", "temp_nbytes")
        total = sum(stats[part] for part in parts) - stats.get("alias_nbytes", 0)
    return {
        "case": case.name,
        "policy": policy,
        "kind": (kind.has_loop, kind.is_checkpointed),
        "source": found.report.mesh.source,
        "warnings": found.report.warnings,
        "kept": found.report.totals.computed_nbytes,
        "arguments": [outside.arguments_nbytes, stats.get("argument_nbytes")],
        "outputs": [outside.outputs_nbytes, stats.get("output_nbytes")],
        "temporaries": [estimate and estimate.temporaries_nbytes, stats.get("temp_nbytes")],
        "total": [estimate and estimate.nbytes, total],
    }


OUT = Path(str(resources.files("jaxresid.inspector.memory") / "mesh_intervals.json"))


def write_intervals(place, rows):
    """Keep the factors between XLA's figure and the estimate, for one place.

    Args:
      place: the place.
      rows: the kind of each program, its estimate and XLA's figure.
    """
    compilers = jax_compat.compilers()
    kept = json.loads(OUT.read_text())
    each = [
        [theirs / mine for kind, mine, theirs in rows if kind == (has_loop, is_checkpointed)]
        for has_loop, is_checkpointed in KINDS
    ]
    kept["profiles"][place.kind] = {
        "places": [place.text.rpartition(":")[0]],
        "compilers": {
            name: [version]
            for name, version in compilers.items()
            if name == "jaxlib" or place.kind == "tpu"
        },
        "programs": len(rows),
        "smallest_nbytes": min(theirs for _, _, theirs in rows),
        "largest_nbytes": max(theirs for _, _, theirs in rows),
        "other_versions": calibrations()[place.kind].other_versions,
        "kinds": [
            {
                "has_loop": has_loop,
                "is_checkpointed": is_checkpointed,
                "programs": len(factors),
                "low": math.floor(min([1, *factors]) * 1000) / 1000,
                "high": math.ceil(max([1, *factors]) * 1000) / 1000,
            }
            for (has_loop, is_checkpointed), factors in zip(KINDS, each, strict=True)
        ],
    }
    found = {"coverage": 1.0, "profiles": dict(sorted(kept["profiles"].items()))}
    OUT.write_text(json.dumps(found, indent=2) + "\n")


KINDS = [
    (has_loop, is_checkpointed) for has_loop in (True, False) for is_checkpointed in (True, False)
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--on", default="gpu:h100:8")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--large", action="store_true", help="only the large ones, see LARGE")
    parser.add_argument("--write", action="store_true", help="keep the factors as intervals")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    errors, rows = [], []
    for case in LARGE if options.large else (*CASES, *LARGE):
        if options.names and case.name not in options.names:
            continue
        for policy in options.policies.split(","):
            found = figures(case, policy, options.on)
            if options.json:
                print(json.dumps(found), flush=True)
                continue
            columns = [
                f"{name} {a / 2**20:8.2f} {b / 2**20:8.2f}"
                for name in ("arguments", "temporaries", "total")
                for a, b in [found[name]]
                if a is not None and b is not None
            ]
            mine, theirs = found["total"]
            if mine is not None:
                errors.append(mine / theirs - 1)
                if theirs >= LEAST_NBYTES:
                    rows.append((found["kind"], mine, theirs))
                columns.append(f"{errors[-1]:+.0%}")
            print(f"{case.name:23} {policy:8}", *columns, flush=True)
    if errors:
        sizes = sorted(map(abs, errors))
        print(f"MiB, estimate then XLA: median error {statistics.median(sizes):.1%}", end="")
        print(f", worst {sizes[-1]:.1%}")
    if options.write:
        write_intervals(parse_place(options.on), rows)


if __name__ == "__main__":
    main()
