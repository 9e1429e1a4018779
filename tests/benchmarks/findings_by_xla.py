"""What findings say that a rewrite does to the peak, against XLA with the rewrite made.

    python -m tests.benchmarks.findings_by_xla [--on tpu:v5e] [--on gpu:h100] [--set library]
        [--budget 0.5] [--write rows.jsonl] [NAME ...]
    python -m tests.benchmarks.findings_by_xla --read rows.jsonl

The programs of two sets: `tests`, which rules were written and mended with, and `library`, of
tests/benchmarks/library_programs.py, which were not; and of those over meshes of eight devices,
`mesh-tests` and `mesh-library`, of tests/benchmarks/mesh_programs.py. `jaxresid.check` says what it
finds and what the estimate says that it is worth; where it finds something that compilers judge, it
is asked again with `compile=True`. With `--budget` a program may have that part of its own
estimated peak, so that JXR842 has something to say, and only this is asked about.

A fall is how much of XLA's peak of the program a rewrite takes off.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import traceback
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "advice"))

import jax

import jaxresid
from tests.benchmarks import library_programs, mesh_programs

CODES = (830, 831, 832, 833, 840, 841, 842, 843, 844)
JUDGED = {f"JXR{code}" for code in CODES}
SETS = "library", "tests", "mesh-library", "mesh-tests"
OVER_MESHES = {"mesh-tests": mesh_programs.TESTS, "mesh-library": mesh_programs.KEPT_BACK}
# What a program of the tests is called with to be as it was before anything was said of it.
AS_WRITTEN = {
    "test_compiled_attention": (("jax_nn", "linen", "nnx", "equinox"), None),
    "test_compiled_logits": (
        ("from_logsumexp", "from_one_hot", "from_capped", "linen", "equinox"),
        None,
    ),
    "test_compiled_loop_state": (
        ("last_of_stack", "last_hidden", "with_context", "linen", "equinox", "maxtext_4405"),
        False,
    ),
    "test_compiled_defeated_policy": (("pipeline", "linen", "nnx", "equinox"), "NO_BATCH"),
    "test_compiled_microbatches": (("dense", "scanned", "linen"), 1),
    "test_threads": (
        (
            *("jax_35906", "axlearn_1236", "jax_1733", "jasmine_168", "jax_2139", "levanter_427"),
            *("jax_3186", "jax_19822", "xla_17541", "maxtext_971", "equinox_1152"),
        ),
        False,
    ),
}


def of_the_tests():
    """Yield the name of each program of the tests, and what returns it with its arguments."""
    for module, (names, written) in AS_WRITTEN.items():
        tests = importlib.import_module(module)
        given = getattr(tests, written) if isinstance(written, str) else written
        for name in names:
            program = getattr(tests, name)
            yield f"{module[5:]}.{name}", lambda program=program, given=given: program(given)
    steps = importlib.import_module("tests.donation_steps")
    for name in steps.STEPS:
        case = lambda name=name: steps.case(name, wide=True)
        yield f"donation.{name}", lambda case=case: (case().fun, case().args)
    gathering = importlib.import_module("test_gathered_weights")
    for name in ("scanned", "unrolled", "nested"):
        yield f"gathered_weights.{name}", lambda name=name: _on_a_mesh(gathering, name)


def _on_a_mesh(gathering, name):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    local = getattr(gathering, name)(gathering.product)
    return gathering.mapped(local, mesh), gathering.inputs(mesh, 6)


def programs(of):
    """Yield the name, the maker and the options of each program of a set."""
    if of == "tests":
        yield from ((name, made, {}) for name, made in of_the_tests())
        return
    if of in OVER_MESHES:
        yield from ((name, made, {"argnums": 0}) for name, made in OVER_MESHES[of].items())
        return
    for program in library_programs.LOSSES:
        yield program.__name__, program, {"argnums": 0}
    for program in library_programs.STEPS:
        yield program.__name__, program, {}


def on_so_many(of, name, on):
    """Return the place of a program of a set: that of eight devices, of one on a mesh."""
    if of not in OVER_MESHES and not name.startswith("gathered_weights."):
        return on
    return f"{on}:2x4" if on.startswith("tpu") else f"{on}:8"


def judged(found, budget):
    codes = {"JXR842"} if budget else JUDGED
    return [v for v in found if v.code in codes]


def rows_of(of, name, made, on, options, budget):
    """Return a row of each finding of a program that a compiler judges, or one without any."""
    on = on_so_many(of, name, on)
    row = {"set": of, "program": name, "on": on}
    jax.clear_caches()
    fun, args = made()
    peak = jaxresid.inspect(fun, on=on, **options)(*args).peak
    row["peak_nbytes"] = peak.nbytes
    row["interval"] = [peak.low_nbytes, peak.high_nbytes]
    limit = {"max_peak": f"{int(budget * peak.nbytes)}B"} if budget else {}
    said = judged(jaxresid.check(fun, on=on, **options, **limit)(*args), budget)
    if not said:
        return [row]
    jax.clear_caches()
    fun, args = made()
    asked = {"compile": True, "compile_time": 600}
    found = judged(jaxresid.check(fun, on=on, **options, **limit, **asked)(*args), budget)
    return [{**row, **figures(v, estimated(v, said))} for v in found]


def estimated(violation, said):
    """Return what a finding measures by the estimate, which is replaced only where XLA has both."""
    if violation.measured.get("by") != "xla":
        return violation.measured
    place = (violation.code, violation.span)
    return next((v.measured for v in said if (v.code, v.span) == place), {})


def figures(violation, estimate):
    measured = violation.measured
    found = {
        "code": violation.code,
        "before": estimate.get("peak_before_nbytes"),
        "after": estimate.get("peak_nbytes"),
        "verdict": measured.get("compiler_verdict"),
        "xla_before": measured.get("compiler_peak_before_nbytes"),
        "xla_after": measured.get("compiler_peak_nbytes"),
    }
    if "low_nbytes" in estimate:
        found["after_interval"] = [estimate["low_nbytes"], estimate["high_nbytes"]]
    if "unconfirmed" in measured:
        found["unconfirmed"] = measured["unconfirmed"][:200]
    return found


def miss(row):
    """Return by how much the estimated fall and XLA's differ, of XLA's peak; None without both."""
    if None in (row.get("before"), row.get("after"), row.get("xla_before"), row.get("xla_after")):
        return None
    fall, by_xla = row["before"] - row["after"], row["xla_before"] - row["xla_after"]
    return (fall - by_xla) / row["xla_before"]


def is_within(row):
    """Whether both peaks of XLA are within the interval around the estimated ones.

    That of the changed program is the finding's, where it has one, else as wide as the program's.
    """
    low, high = (each / row["peak_nbytes"] for each in row["interval"])
    around = row.get("after_interval", (low * row["after"], high * row["after"]))
    before = low * row["before"] <= row["xla_before"] <= high * row["before"]
    return before and around[0] <= row["xla_after"] <= around[1]


def shown(row):
    head = f"{row['program']:42} {row['on']:12}"
    if "error" in row:
        return f"{head} ERROR {row['error']}"
    if "code" not in row:
        return f"{head} -"
    mib = lambda name: "?" if row[name] is None else f"{row[name] / 2**20:.0f}"
    off = miss(row)
    said = f"{mib('before')} -> {mib('after')}"
    by_xla = f"{mib('xla_before')} -> {mib('xla_after')}"
    near = "" if off is None else f"{off:+7.1%}{'' if is_within(row) else ' BEYOND'}"
    return f"{head} {row['code']} {said:>16}  {by_xla:>16} MiB {row['verdict'] or '-':11} {near}"


def summary(rows):
    """Yield a line for each code, place and set."""
    groups = defaultdict(list)
    for row in rows:
        if "code" in row:
            groups[row["set"], row["code"], row["on"].partition(":")[0]].append(row)
    for (of, code, on), found in sorted(groups.items()):
        count = lambda verdict, found=found: sum(row["verdict"] == verdict for row in found)
        off = [abs(each) for row in found if (each := miss(row)) is not None]
        beyond = sum(miss(row) is not None and not is_within(row) for row in found)
        near = f"median {statistics.median(off):.1%}, worst {max(off):.1%}" if off else "no figures"
        yield (
            f"{of:12} {code} {on:4} {len(found):3} findings, {count('confirmed')} confirmed,"
            f" {count('refuted')} refuted, {count('unconfirmed')} unconfirmed; falls off by {near},"
            f" {beyond} beyond the interval"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--on", action="append")
    parser.add_argument("--set", action="append", choices=SETS)
    parser.add_argument("--budget", type=float)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--read", type=Path, action="append", default=[])
    options = parser.parse_args()
    rows = [json.loads(line) for path in options.read for line in path.read_text().splitlines()]
    for row in rows:
        print(shown(row))
    asked = [] if options.read else options.set or SETS
    for of in asked:
        for name, made, given in programs(of):
            if options.names and name not in options.names:
                continue
            for on in options.on or ["tpu:v5e", "gpu:h100"]:
                try:
                    found = rows_of(of, name, made, on, given, options.budget)
                except Exception as e:
                    traceback.print_exc()
                    found = [{"set": of, "program": name, "on": on, "error": repr(e)[:300]}]
                for row in found:
                    print(shown(row), flush=True)
                    rows.append(row)
                    if options.write:
                        with options.write.open("a") as file:
                            file.write(json.dumps(row) + "\n")
    silent = sum("code" not in row and "error" not in row for row in rows)
    print(
        f"{len({row['program'] for row in rows})} programs; nothing said in {silent} of their runs"
    )
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
