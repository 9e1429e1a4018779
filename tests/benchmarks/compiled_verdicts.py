"""XLA's verdicts on checkpoints against really removing them.

    python tests/benchmarks/compiled_verdicts.py [--on cpu] [--on tpu:v5e] [--on gpu:h100] [NAME]

The programs of tests/verdict_programs.py, each with all of its checkpoints and, by hand, without
one. Prints XLA's peaks as `jaxresid.inspect(..., compile=True)` has them, those of the code without
the checkpoint, the verdict, and what the estimate says where that is something else. A peak by hand
is that of plain `jax.jit` for cpu, and of `jaxresid.compile` for what is not here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from verdict_programs import PROGRAMS, peak_by_jax, verdict_of

import jaxresid

POLICY_VERDICTS = ("overridden", "matched-nothing")


def peak_by_hand(name, fun, args, on):
    if on == "cpu":
        return peak_by_jax(name, fun, args)
    mode = "program" if name == "step" else "loss"
    (found,) = jaxresid.compile(fun, on=on, mode=mode)(*args).compiled
    if found.peak_nbytes is None:
        raise SystemExit(f"{name} on {on}: {found.error}")
    return found.peak_nbytes


def cases(name, on, width):
    """Whether each checkpoint of a program has the verdict of removing it, and a line on it."""
    program = PROGRAMS[name]
    args = program.inputs(width)
    report = jaxresid.inspect(program.whole(), on=on, compile=True, compile_time=600)(*args)
    peak = peak_by_hand(name, program.whole(), args, on)
    for c in report.checkpoints:
        without = peak_by_hand(name, program.without(c.function), args, on)
        expected = verdict_of(
            c.kept_without_nbytes - c.kept_nbytes,
            peak,
            without,
            can_be_undone=(name, c.function) == ("cse allowed", "first"),
        )
        if c.verdict in POLICY_VERDICTS:
            expected = c.verdict  # is so whatever the peaks
        same = c.by == "xla" and c.verdict == expected
        is_byte = (c.peak_nbytes, c.peak_without_nbytes) == (peak, without)
        said = c.estimated.verdict if c.estimated and c.estimated.verdict != c.verdict else ""
        yield (
            same,
            is_byte,
            said,
            f"{on:10} {name:16} {c.function:7} {peak / 2**20:8.2f} {without / 2**20:8.2f} MiB"
            f"  {c.verdict:15} {'' if same else f'NOT {expected}':20}"
            f"{'' if is_byte else f'peaks {c.peak_nbytes} {c.peak_without_nbytes} '}"
            f"{c.unconfirmed}{f'estimate: {said}' if said else ''}",
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(PROGRAMS))
    parser.add_argument("--on", action="append")
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    found = []
    print("place      program          checkpt     with  without")
    for on in options.on or ["cpu"]:
        for name in options.names:
            for case in cases(name, on, options.width):
                found.append(case)
                print(case[-1], flush=True)
    same, exact = sum(case[0] for case in found), sum(case[1] for case in found)
    print(f"{same} of {len(found)} verdicts are those of removing it, {exact} to the byte")
    print(f"the estimate's verdict is another one in {sum(bool(case[2]) for case in found)}")


if __name__ == "__main__":
    main()
