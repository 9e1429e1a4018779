"""What each rule of the estimate adds, against plain liveness and against JAX's own.

    python -m tests.benchmarks.accuracy.ablation [--on gpu:h100] [--jaxlib 0.12.0.1] [--sets fit]
        [--only TEXT] [--folder FOLDER]

For each place, jaxlib and set of programs: the median and the 90th percentile of
|estimate / XLA - 1| and how many pairs of placements are ranked as XLA ranks them

- of liveness where every operation writes an array;
- of `peak_hbm_bytes` of `jax.experimental.roofline`, which does the same with the jaxpr, and counts
  donated arguments twice;
- of the estimate;
- of the estimate with one decision of its table as in the other one.

What costs nothing without it on programs that it was not fitted to is not worth its lines.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from tests.benchmarks.accuracy import rows
from tests.benchmarks.accuracy.rows import Row
from tests.benchmarks.accuracy.score import by_place, family, is_scored, score
from tests.benchmarks.accuracy.split import set_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--on", help="one place alone")
    parser.add_argument("--jaxlib", help="one version alone")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--sets", nargs="+", default=["fit"], choices=("fit", "conform"))
    parser.add_argument("--folder", type=Path, default=rows.DATA)
    options = parser.parse_args()
    found = [
        row
        for row in rows.read_all(options.folder)
        if set_of(family(row)) in options.sets
        and options.only in row.program
        and options.on in (None, row.place)
        and options.jaxlib in (None, row.jaxlib)
        and is_scored(row)
    ]
    estimated = _estimated(found)
    for name in options.sets:
        for (place, jaxlib), each in by_place(found).items():
            chosen = [row for row in each if set_of(family(row)) == name]
            if chosen:
                print(f"\n{name} set, {place}, jaxlib {jaxlib}")
                _print(chosen, estimated)


def _print(found: Sequence[Row], estimated: dict[tuple[str, str], dict[str, int]]) -> None:
    print(f"{'':48} {'programs':>8} {'median':>7} {'90 %':>7} {'ranked alike':>14}")
    for name in next(estimated[_key(row)] for row in found if _key(row) in estimated):
        scored = [
            replace(row, estimate_nbytes=nbytes)
            for row in found
            if (nbytes := estimated.get(_key(row), {}).get(name)) is not None
        ]
        if scored:
            result = score(scored)
            ranked = f"{result.ranked} of {result.pairs}"
            print(
                f"{name:48} {result.count:8} {result.median:7.1%} {result.ninth:7.1%} {ranked:>14}"
            )


def _key(row: Row) -> tuple[str, str, str]:
    return row.program, row.place, row.jaxlib


def _estimated(found: Sequence[Row]) -> dict[tuple[str, str, str], dict[str, int]]:
    """Return all estimates by program, place and jaxlib; each program is traced once."""
    from jaxresid.inspector.memory.compilers import profile_of
    from jaxresid.xla.places import parse_place
    from tests.benchmarks.accuracy import corpus, estimates

    programs = {program.name: program for program in corpus.PROGRAMS}
    wanted = defaultdict(set)
    for row in found:
        if row.program in programs:
            wanted[row.program].add((row.place, row.jaxlib))
    nbytes = {}
    for number, (name, compilers) in enumerate(sorted(wanted.items()), 1):
        written = estimates.traced(programs[name], min(compilers)[0])
        own = _by_jax(written)
        for place, jaxlib in compilers:
            profile = profile_of(parse_place(place), jaxlib)
            nbytes[name, place, jaxlib] = {
                "every operation writes an array": _plain(written, profile),
                "jax.experimental.roofline": own,
                **_variants(written, profile),
            }
        estimates.forget()
        print(f"\restimated {number} of {len(wanted)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return nbytes


def _variants(written, profile) -> dict[str, int]:
    """Return the estimate, and those with one decision less."""
    from jaxresid.inspector.memory.lowered import lower
    from jaxresid.inspector.memory.peak import peak_nbytes
    from jaxresid.inspector.memory.profile import GPU_BEFORE_0_12, TPU

    other = GPU_BEFORE_0_12 if profile is TPU else TPU
    found = {"the estimate": peak_nbytes(lower(written.program, profile))}
    for field in fields(profile):
        value = getattr(other, field.name)
        if field.name != "name" and value != getattr(profile, field.name):
            changed = replace(profile, **{field.name: value})
            text = f"  {field.name}: {_text(value)}"
            found[text] = peak_nbytes(lower(written.program, changed))
    return found


def _text(value) -> str:
    return " ".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def _plain(written, profile) -> int:
    """Return the peak where every operation writes an array; a view is in its operand's."""
    from jaxresid.inspector.jaxpr.primitives import VIEWS
    from jaxresid.inspector.memory.lowered import Lowered
    from jaxresid.inspector.memory.peak import peak_nbytes
    from jaxresid.inspector.memory.rules.kernels import Kernels

    def arrays(block):
        ops = []
        for op in block.ops:
            bodies = tuple(arrays(body) for body in op.bodies)
            ops.append(replace(op, bodies=bodies, name="barrier" if op.name in VIEWS else op.name))
        return Kernels(block.inputs, tuple(ops), block.outputs)

    return peak_nbytes(Lowered(written.program, profile, arrays(written.program.block)))


def _by_jax(written) -> int | None:
    """Return the peak of `jax.experimental.roofline`; None where it fails."""
    from jax.experimental.roofline import roofline

    logging.getLogger("jax").setLevel(logging.CRITICAL)
    what = written.trace.lowerable()
    try:
        _, result = roofline(lambda *operands: list(what.run(operands)))(*what.operands)
    except Exception:
        return None
    return result.peak_hbm_bytes


if __name__ == "__main__":
    main()
