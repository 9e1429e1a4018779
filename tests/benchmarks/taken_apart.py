"""Which training steps can be taken apart into an outer program and its gradients, and why not.

    python -m tests.benchmarks.taken_apart [--set fixtures] [NAME ...]

`joined`: the step is traced with its gradients left out, these are differentiated and put back, and
the result has the eqns of the step as JAX traces it, unless it says otherwise. `traced again`: that
cannot be done, so that a step is traced again for each change. `refused`: neither can be done.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "zoo" / "programs"))

import pytest

from jaxresid import jax_compat
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.report import subject
from jaxresid.inspector.trace.step import StepTrace
from tests.zoo.targets import TARGETS

FIXTURES = {
    "fixtures.inspect.train_step": (
        *("train_step", "train_step_checkpointed", "train_step_donated"),
        *("train_step_accumulated", "train_step_optax"),
    ),
    "fixtures.inspect.nnx_steps": (
        *("train_step", "train_step_frozen", "train_step_knowing", "train_step_metrics"),
        *("train_step_functional", "train_step_global", "train_step_evaluated"),
    ),
    "fixtures.inspect.optimizer": (
        *("step", "donated_step", "host_state_step", "array_by_array_step"),
    ),
    "fixtures.inspect.docs": (),
    "fixtures.tutorials.equinox_step": ("train_step",),
    "fixtures.tutorials.linen_step": ("train_step",),
    "fixtures.tutorials.nnx_step": ("train_step",),
}


def _inputs(module, name):
    made = getattr(module, f"{name}_inputs", None) or getattr(module, "train_step_inputs", None)
    return made()


def of_fixtures():
    for module, names in FIXTURES.items():
        for name in names:

            def program(module=module, name=name):
                found = importlib.import_module(module)
                return getattr(found, name), _inputs(found, name)

            yield f"{module.rpartition('.')[2]}.{name}", program


def of_tests():
    joined = importlib.import_module("tests.inspector.variants.test_joined")
    for make in (*joined.JOINED, *joined.APART):
        yield f"joined.{make.__name__}", lambda make=make: make(joined.squares)
    steps = importlib.import_module("tests.inspector.checkpoints.test_step_checkpoints")
    for name, (loss, params) in steps.LOSSES.items():
        yield (
            f"checkpoints.{name}",
            lambda name=name, loss=loss, params=params: (
                steps.step_of(loss),
                (params, steps.input_of(name)),
            ),
        )
    donation = importlib.import_module("tests.donation_steps")
    for name in donation.STEPS:

        def program(name=name):
            case = donation.case(name)
            return case.fun, case.args

        yield f"donation.{name}", program


def of_libraries():
    library = importlib.import_module("tests.benchmarks.library_programs")
    for program in library.STEPS:
        yield program.__name__, program


def of_zoo():
    for target in TARGETS:
        if target.is_step:

            def program(target=target):
                module = importlib.import_module(target.program)
                return getattr(module, target.function), _inputs(module, target.function)

            yield target.name, program


SETS = {"fixtures": of_fixtures, "tests": of_tests, "library": of_libraries, "zoo": of_zoo}


def verdict(program):
    """Return what becomes of a step that is taken apart and put together."""
    try:
        fun, args = program()
    except (ImportError, pytest.skip.Exception) as e:
        return f"not installed: {getattr(e, 'name', e)}"
    args = args if isinstance(args, tuple) else (args,)
    try:
        found = subject(Question(fun, args, mode="program"))
    except JaxresidError as e:
        return f"not traced: {str(e).splitlines()[0]}"
    step = found.trace
    assert isinstance(step, StepTrace)
    if not step.holds_gradient:
        return "no gradient"
    started = time.perf_counter()
    holes = found.holes
    try:
        number, made = len(holes.holes), holes.trace({})
    except JaxresidError as e:
        return f"refused: {e}"
    seconds = time.perf_counter() - started
    way = "joined" if holes.is_deferred else "traced again"
    same = [Counter(map(_kind, eqns_in(each.jaxpr))) for each in (made, step)]
    if same[0] == same[1]:
        return f"{way} ({number}, {seconds:.1f} s)"
    more, fewer = same[0] - same[1], same[1] - same[0]
    return f"{way} ({number}), with other eqns: +{dict(more)} -{dict(fewer)}"


def _kind(eqn):
    return jax_compat.primitive_name(eqn), *(str(v.aval) for v in eqn.outvars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--set", choices=SETS, action="append")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for of in options.set or SETS:
        for name, program in SETS[of]():
            if options.names and name not in options.names:
                continue
            try:
                text = verdict(program)
            except Exception:
                traceback.print_exc()
                text = "an error"
            counts[text.partition(":")[0].partition(" (")[0]] += 1
            print(f"{of:10} {name:40} {text[:300]}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
