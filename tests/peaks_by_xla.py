"""What findings say of a peak, held against XLA: the program as written and rewritten by hand.

A program is a function of how it is written that returns the function to trace and its arguments.
"""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

import jaxresid

PLACES = {"gpu:h100": pytest.mark.gpu, "tpu:v5e": pytest.mark.tpu}


@dataclass(frozen=True)
class Peaks:
    """The peaks of a program before and after a rewrite, by XLA and by the estimate, in bytes."""

    before: int
    after: int
    estimated_before: int
    estimated_after: int

    @property
    def fall(self):
        return 1 - self.after / self.before

    @property
    def estimated_fall(self):
        return 1 - self.estimated_after / self.estimated_before


def cases(programs, gate):
    """Return each program on each place; those outside of `gate` run with the programs."""
    return [
        pytest.param(
            program,
            on,
            marks=[mark, pytest.mark.integration if (program, on) in gate else _PROGRAMS],
            id=f"{program.__name__}-{on}",
        )
        for program in programs
        for on, mark in PLACES.items()
    ]


_PROGRAMS = pytest.mark.programs


def peak_by_xla(fun, args, on):
    (compiled,) = jaxresid.compile(fun, on=on)(*args).compiled
    assert compiled.error is None
    return compiled.peak_nbytes


def passes_with_devices(count, test):
    """Run a test of a TPU's compiler in a process that has so many CPU devices.

    Args:
      count: how many.
      test: `file::name`.
    """
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "tpu", test]
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": str(count)}
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def figures(code, fun, args, on, **options):
    """Return the figures of each finding with a code."""
    found = jaxresid.check(fun, on=on, **options)(*args)
    return [v.measured for v in found if v.code == code]


def peaks(program, code, on, written=False, by_hand=lambda measured: True):
    """Return the peaks of a program as written and as rewritten, by what its one finding says."""
    (measured,) = figures(code, *program(written), on)
    after = peak_by_xla(*program(by_hand(measured)), on)
    before = peak_by_xla(*program(written), on)
    estimated = measured["peak_before_nbytes"], measured["peak_nbytes"]
    found = Peaks(before, after, *estimated)
    print(
        program.__name__, on, f"XLA {found.fall:.1%}, estimated {found.estimated_fall:.1%}", found
    )
    return found
