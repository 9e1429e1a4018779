"""`jaxresid compare --measure`: run variants of one function side by side on the local device.

On the CPU they run in a process of their own: memory that runs out there may end it, and then the
next one goes on with the others. They get there as StableHLO (`jax.export`), so that nothing of the
user's is imported a second time; compiled, it is what `jax.jit` compiles, optimization barriers and
all (equal temporaries and FLOPs for each of the tests' programs on JAX 0.7.0 to 0.12.0). On a GPU
or a TPU they run in this process: two processes cannot share one, and there, running out of memory
is an exception.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jaxresid import jax_compat
from jaxresid.advice.timing.measure.process import BenchProcess, DiedError, FailedError, reason
from jaxresid.advice.timing.measure.random_inputs import LeafRecipe, leaf_recipes, spec
from jaxresid.advice.timing.measure.worker import Bench
from jaxresid.base.errors import JaxresidError
from jaxresid.base.progress import Stage
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Timing

ROUNDS = 10
_FEWEST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class VariantToTime:
    """A variant that is to be measured.

    Attributes:
      label: Its name.
      fun: A pure function, which JAX can trace, from the leaves of the arguments to those of the
        results, outputs and gradients.
    """

    label: str
    fun: Callable[[list[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Measurement:
    """The results of a measurement by label: a timing, or why there is none.

    Attributes:
      device: What the runs ran on.
      timings: The timing of each run that did not fail.
      errors: Why each of the others failed.
    """

    device: str
    timings: Mapping[str, Timing]
    errors: Mapping[str, str]


def measured(
    runs: Sequence[VariantToTime],
    baseline: str,
    leaves: Sequence[Any],
    paths: Sequence[str],
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    patience_s: float = 120.0,
    isolated: bool | None = None,
    progress: Callable[[str], None] | None = None,
) -> Measurement:
    """Time runs and compare the results of each with those of the baseline.

    Args:
      runs: The variants; their labels differ.
      baseline: The label of the run that the others are compared with.
      leaves: The leaves of the arguments: ShapeDtypeStructs, drawn at random (see
        `random_inputs.drawn`), or the arrays and numbers themselves.
      paths: The names of the leaves.
      rounds: How many rounds; in each, every run runs once, in an order that changes.
      seed: The seed of the inputs and of the order.
      patience_s: Seconds after which no further round begins once there are 3.
      isolated: Whether they run in a process of their own; None means only on the CPU.
      progress: Called with a text that says what is being done.

    Raises:
      InputsError: A leaf cannot be drawn at random.
      JaxresidError: A package is missing, or the inputs cannot be made on the device.
    """
    recipes = leaf_recipes(leaves, paths)
    if isolated is None:
        isolated = jax_compat.import_jax().default_backend() == "cpu"
    if isolated and importlib.util.find_spec("flatbuffers") is None:
        raise JaxresidError(
            "measuring needs flatbuffers, to send functions to another process:"
            " pip install 'jaxresid[measure]'"
        )
    session = _Session(runs, baseline, recipes, seed, isolated, progress or (lambda _: None))
    try:
        session.compare()
        session.time(max(1, rounds), patience_s)
        return session.measured()
    finally:
        session.close()


class _Bench(Protocol):
    def call(self, method: str, *args: Any) -> Any: ...
    def close(self) -> None: ...


class _BenchHere:
    """A bench in this process, with the methods of `BenchProcess`."""

    def __init__(self, recipes: Sequence[LeafRecipe], seed: int) -> None:
        self._bench = _failing(Bench, recipes, seed)

    def call(self, method: str, *args: Any) -> Any:
        return _failing(getattr(self._bench, method), *args)

    def close(self) -> None:
        del self._bench


class _Session:
    """One measurement.

    What a bench holds is lost when it dies, so a program is loaded when it is about to run and is
    not there.
    """

    def __init__(
        self,
        runs: Sequence[VariantToTime],
        baseline: str,
        recipes: Sequence[LeafRecipe],
        seed: int,
        isolated: bool,
        progress: Callable[[str], None],
    ) -> None:
        self._funs = {run.label: jax_compat.import_jax().jit(run.fun) for run in runs}
        self._baseline = baseline
        self._made = recipes
        self._specs = [spec(draw) for draw in recipes]
        self._seed = seed
        self._isolated = isolated
        self._progress = progress
        self._bench: _Bench | None = None
        self._loaded: set[str] = set()
        self._refers = False
        self._device = ""
        self._tolerance = 0.0
        self._agreement: dict[str, float | None] = {}
        self._seconds: list[dict[str, float]] = []
        self._errors: dict[str, str] = {}

    def compare(self) -> None:
        """Run each once and compare its results with the baseline's."""
        bench = self._running()
        self._device = bench.call("device")
        platform = jax_compat.import_jax().default_backend()
        with self._attempt(self._baseline):
            traced = _failing(self._funs[self._baseline].trace, self._specs)
            self._tolerance = tolerance(jax_compat.open_jaxpr(traced.jaxpr), platform)
            self._progress(Stage(f"measuring {len(self._funs)} programs"))
            self._progress(f"{self._baseline}: compiling and running")
            self._run_reference()
        for label in self._left():
            if label == self._baseline:
                continue
            self._progress(f"{label}: compiling and running")
            self._agreement[label] = None
            if self._baseline not in self._errors:
                with self._attempt(self._baseline):
                    self._run_reference()
            with self._attempt(label):
                self._load(label)
                if self._baseline not in self._errors:
                    error = self._running().call("error", label, self._tolerance)
                    self._agreement[label] = error

    def time(self, rounds: int, patience_s: float) -> None:
        """Run all that are left in rounds."""
        shuffle = random.Random(self._seed).shuffle
        start = time.monotonic()
        for n in range(rounds):
            if n >= _FEWEST_ROUNDS and time.monotonic() - start > patience_s:
                break
            self._progress(f"round {n + 1} of {rounds}")
            order = self._left()
            shuffle(order)
            self._seconds.append({})
            for label in order:
                with self._attempt(label):
                    self._load(label)
                    self._seconds[-1][label] = self._running().call("seconds", label)

    def measured(self) -> Measurement:
        timings = {label: self._timing(label) for label in self._left()}
        return Measurement(self._device, timings, dict(self._errors))

    def close(self) -> None:
        if self._bench is not None:
            self._bench.close()
            self._bench = None
        self._loaded.clear()
        self._refers = False

    def _left(self) -> list[str]:
        return [label for label in self._funs if label not in self._errors]

    def _running(self) -> _Bench:
        """Return the bench, which is started if there is none.

        Raises:
          JaxresidError: The inputs cannot be made.
        """
        if self._bench is None:
            make = BenchProcess if self._isolated else _BenchHere
            try:
                self._bench = make(self._made, self._seed)
            except (FailedError, DiedError) as e:
                raise JaxresidError(f"the inputs cannot be made on the local device: {e}") from None
        return self._bench

    @contextlib.contextmanager
    def _attempt(self, label: str) -> Iterator[None]:
        """Record what goes wrong inside the context as the error of this run."""
        try:
            yield
        except FailedError as e:
            self._errors[label] = str(e)
            with contextlib.suppress(FailedError, DiedError):
                self._running().call("drop", label)
        except DiedError as e:
            self._errors[label] = str(e)
            self.close()

    def _load(self, label: str) -> None:
        bench = self._running()
        if label in self._loaded:
            return
        make = exported if self._isolated else _lowered
        bench.call("load", label, _failing(make, self._funs[label], self._specs))
        self._loaded.add(label)

    def _run_reference(self) -> None:
        self._load(self._baseline)
        if not self._refers:
            self._agreement[self._baseline] = self._running().call("run_reference", self._baseline)
            self._refers = True

    def _timing(self, label: str) -> Timing:
        times = [found[label] for found in self._seconds if label in found]
        ratios = [
            found[label] / found[self._baseline]
            for found in self._seconds
            if label in found and self._baseline in found
        ]
        if self._baseline in self._errors:
            ratios = []
        return Timing(
            seconds=statistics.median(times),
            ratio=statistics.median(ratios) if ratios else None,
            low=min(ratios, default=None),
            high=max(ratios, default=None),
            rounds=len(times),
            gradient_error=self._agreement[label],
            tolerance=self._tolerance,
        )


def exported(fun: Any, specs: Sequence[Any]) -> bytes:
    """Return a jitted function of a list of leaves as bytes that another process can compile.

    Raises:
      Exception: JAX cannot trace or export it, for example because it calls back into Python.
    """
    import jax.export

    def export(disabled: Sequence[Any]) -> bytes:
        return bytes(jax.export.export(fun, disabled_checks=disabled)(specs).serialize())

    try:
        return export(())
    except ValueError as e:
        # Custom calls without promises for other versions of JAX: it is the same one there.
        targets = re.findall(r'custom_call @"?([\w.]+)', fun.lower(specs).as_text())
        if "custom call" not in str(e) or not targets:
            raise
        return export([jax.export.DisabledSafetyCheck.custom_call(t) for t in set(targets)])
    except NotImplementedError as e:
        if "host_callbacks" not in str(e):
            raise
        raise JaxresidError(
            "it calls back into Python (jax.debug.print, jax.pure_callback or the like), which is"
            " not possible from a separate process"
        ) from e


def _lowered(fun: Any, specs: Sequence[Any]) -> Any:
    return fun.lower(specs)


def _failing(call: Callable[..., Any], *args: Any) -> Any:
    """Call a function and return its result; raise what it raises as a FailedError."""
    try:
        return call(*args)
    except JaxresidError as e:
        raise FailedError(str(e)) from e
    except Exception as e:
        raise FailedError(reason(e)) from e


def tolerance(jaxpr: Jaxpr, platform: str) -> float:
    """Return the relative difference that rounding explains.

    It follows from the narrowest float dtype in a jaxpr. Accelerators round the operands of a
    float32 matmul to fewer bits by default: GPUs to those of float16 (TF32), TPUs to those of
    bfloat16.
    """
    jnp = jax_compat.import_jax().numpy
    found = (
        jnp.finfo(var.aval.dtype).nmant
        for eqn in eqns_in(jaxpr)
        for var in eqn.outvars
        if hasattr(var.aval, "dtype") and jnp.issubdtype(var.aval.dtype, jnp.inexact)
    )
    bits = min(found, default=52)
    if bits == 23 and platform != "cpu":
        bits = 7 if platform == "tpu" else 10
    # Measured on XLA:CPU with JAX 0.12.0: transformers of 3 to 8 layers (in float32 24), a
    # convolutional net and an MLP, checkpointed in up to four ways, came within 6 eps of the plain
    # ones in float64, float32 and bfloat16, 3 in float16, arrays that are mere rounding apart.
    if bits >= 52:
        return 1e-12
    if bits >= 23:
        return 1e-4
    return float(min(8 * 2.0**-bits, 0.25))
