"""What the estimate and what the compiler hold at the peak of one program, beside each other.

    python -m tests.benchmarks.accuracy.explain random:2/none --on gpu:h100 [--rows N]

Of programs of the test set it says nothing. What was compiled with the same environment comes from
the compile cache.
"""

from __future__ import annotations

import argparse
import sys

import jaxresid
from tests.benchmarks.accuracy import corpus

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("program")
    parser.add_argument("--on", default="gpu:h100")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--timeout", type=float, default=600.0)
    options = parser.parse_args()
    program = next((p for p in corpus.PROGRAMS if p.name == options.program), None)
    if program is None:
        sys.exit(f"no program {options.program!r}")
    if program.set == "test":
        sys.exit("the test set is not to be looked at")
    fun, args = program.build()
    report = jaxresid.inspect(fun, on=options.on, **program.options)(*args)
    compiled = jaxresid.compile(
        fun, on=options.on, workers=1, timeout=options.timeout, **program.options
    )(*args)
    (row,) = compiled.compiled
    print(program.text or program.name)
    if row.peak_nbytes is None:
        sys.exit(f"no figures: {row.error}")
    peak = report.peak
    print(f"estimate {peak.nbytes / MIB:.0f} MiB: {_parts(peak)}")
    print(
        f"XLA      {row.peak_nbytes / MIB:.0f} MiB: arguments {row.argument_nbytes / MIB:.0f},"
        f" outputs {row.output_nbytes / MIB:.0f}, temporaries {row.temp_nbytes / MIB:.0f},"
        f" aliased {row.alias_nbytes / MIB:.0f}"
    )
    print(f"\nlive in the estimate, at {peak.primitive} of the {peak.phase}")
    _print_rows(
        (f"{v.nbytes / MIB:9.1f} MiB  {v.count:3} x {v.aval}  {v.kind} {v.primitive or v.path}", v)
        for v in peak.live[: options.rows]
    )
    print("\nlive in XLA")
    _print_rows(
        (
            f"{b.nbytes / MIB:9.1f} MiB  {b.count:3} x {b.shape}  {b.kind} {b.opcode}"
            f" {b.residual or ''}",
            b,
        )
        for b in row.buffers[: options.rows]
    )


def _parts(peak) -> str:
    return ", ".join(
        f"{name} {getattr(peak, f'{name}_nbytes') / MIB:.0f}"
        for name in ("arguments", "outputs", "temporaries", "aliased")
    )


def _print_rows(found) -> None:
    for text, value in found:
        at = value.location
        print(f"  {text}" + (f"  {at.file.rsplit('/', 1)[-1]}:{at.line}" if at else ""))


if __name__ == "__main__":
    main()
