"""Run compiled programs on the local device to tell their times and how far results differ."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxresid import jax_compat
from jaxresid.advice.timing.measure import tolerance as agreement
from jaxresid.advice.timing.measure.random_inputs import LeafRecipe, make_leaves

# What is shorter is run again until it adds up to this; XLA:CPU's dispatch takes about 20 µs.
_SHORTEST_S = 5e-3


class Bench:
    """Compiled programs by label, and one set of inputs.

    At most one program's results are alive besides those of the reference, which are in host
    memory.
    """

    def __init__(self, recipes: Sequence[LeafRecipe], seed: int) -> None:
        self._draws = recipes
        self._seed = seed
        self._inputs = make_leaves(recipes, seed)
        self._programs: dict[str, Any] = {}
        self._warm: set[str] = set()
        self._reference: list[np.ndarray] = []
        self._noise: list[float] = []

    def device(self) -> str:
        device = jax_compat.import_jax().devices()[0]
        if device.platform != "cpu":
            return str(device.device_kind)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return f"cpu ({cores} core{'s' * (cores != 1)})"

    def load(self, label: str, program: Any) -> None:
        """Compile a program: a `jax.stages.Lowered`, or the bytes of a `jax.export.Exported`."""
        if isinstance(program, bytes):
            import jax.export

            exported = jax.export.deserialize(bytearray(program))
            program = jax.jit(exported.call).lower(self._inputs)
        self._programs[label] = program.compile()

    def drop(self, label: str) -> None:
        self._programs.pop(label, None)

    def run_reference(self, label: str) -> float | None:
        """Run a program and keep its results as those to compare with.

        Returns:
          Its own error: 0, or None where nothing can be told from its results.
        """
        self._reference = self._results(label)
        # The nudged inputs take the place of the others: two sets might not fit.
        self._inputs = []
        try:
            self._inputs = make_leaves(self._draws, self._seed, nudged=True)
            nudged = self._results(label)
        finally:
            self._inputs = []
            self._inputs = make_leaves(self._draws, self._seed)
        self._noise = [agreement.gap(a, b) for a, b in zip(nudged, self._reference, strict=True)]
        return agreement.error(self._reference, self._reference, self._noise, tolerance=0.0)

    def error(self, label: str, tolerance: float) -> float | None:
        return agreement.error(self._results(label), self._reference, self._noise, tolerance)

    def seconds(self, label: str) -> float:
        """Return the seconds that one run takes, after a first one that does not count."""
        run = self._programs[label]
        block_until_ready = jax_compat.import_jax().block_until_ready
        if label not in self._warm:
            block_until_ready(run(self._inputs))
            self._warm.add(label)
        runs, elapsed = 0, 0.0
        while elapsed < _SHORTEST_S:
            start = time.perf_counter()
            results = block_until_ready(run(self._inputs))
            elapsed += time.perf_counter() - start
            runs += 1
            del results
        return elapsed / runs

    def _results(self, label: str) -> list[np.ndarray]:
        """Return the float and complex results of one run, in host memory."""
        jax = jax_compat.import_jax()
        results = jax.block_until_ready(self._programs[label](self._inputs))
        self._warm.add(label)
        inexact = [r for r in results if jax.numpy.issubdtype(r.dtype, jax.numpy.inexact)]
        return [np.asarray(r) for r in inexact]
