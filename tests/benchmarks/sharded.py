"""The estimate of one device's memory against what XLA says, for programs split over a mesh.

    python tests/benchmarks/sharded.py [--on gpu:h100:8|cpu] [--policies none,dots,nothing] [NAME]

Prints one row per case and policy, then the errors. On a CPU nothing but arguments and outputs is
estimated. A TPU keeps what fits in its on-chip memory out of the figures, so that cases as small as
these say something about arguments there and little about temporaries.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sharded import CASES, POLICIES

from jaxresid.inspector.call.question import Question
from jaxresid.inspector.memory.compilers import profile_of
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import OpSources, peak
from jaxresid.inspector.report import inspection
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.xla.job import Job
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.process import execute


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
    stats = said.stats
    return {
        "case": case.name,
        "policy": policy,
        "source": found.report.mesh.source,
        "warnings": found.report.warnings,
        "kept": found.report.totals.computed_nbytes,
        "arguments": [outside.arguments_nbytes, stats["argument_nbytes"]],
        "outputs": [outside.outputs_nbytes, stats["output_nbytes"]],
        "temporaries": [estimate and estimate.temporaries_nbytes, stats["temp_nbytes"]],
        "total": [
            estimate and estimate.nbytes,
            stats["argument_nbytes"]
            + stats["output_nbytes"]
            + stats["temp_nbytes"]
            - stats.get("alias_nbytes", 0),
        ],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--on", default="gpu:h100:8")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    errors = []
    for case in CASES:
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
                if a is not None
            ]
            mine, theirs = found["total"]
            if mine is not None:
                errors.append(mine / theirs - 1)
                columns.append(f"{errors[-1]:+.0%}")
            print(f"{case.name:23} {policy:8}", *columns, flush=True)
    if errors:
        sizes = sorted(map(abs, errors))
        print(f"MiB, estimate then XLA: median error {statistics.median(sizes):.1%}", end="")
        print(f", worst {sizes[-1]:.1%}")


if __name__ == "__main__":
    main()
