"""The code that `plan` writes against the original: the same values and gradients?

    python -m tests.benchmarks.written_gradients [--on tpu:v5e] [--only REGEX] [--most 30]

Plans, by the estimate, for the programs and budgets of `confirmed_plans.py`. The edits of each plan
are made in this process, where tracing them gives what is planned, and both functions run here with
random inputs and a batch of a few rows; everything else has its real size. Held against each other
are the value and the gradients of a function and the results of a step, by the largest difference
over the largest entry of each array. The bodies of checkpoints run once more, so that no more than
rounding may differ. Some gradients are sums that cancel, and nothing but rounding (that of a key's
bias in attention): what the function itself moves by, with each input off by one part in ten
million, may differ as well. It says how many arrays of how many that leaves. Exits 1 where more
differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jaxresid.advice.plan.floor.reliefs import batch_of
from jaxresid.advice.plan.live_patch import UnpatchableError, patched
from jaxresid.advice.plan.verification import in_process_check
from jaxresid.base.errors import JaxresidError
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.bindings import intercept_bind
from jaxresid.inspector.report import subject
from jaxresid.xla.places import parse_place
from tests.benchmarks.accuracy import corpus, estimates
from tests.benchmarks.confirmed_plans import SHARES
from tests.plans import drafted

ROWS = 2
# What rounding explains, of the largest entry of an array.
CLOSE = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-3}
# An array that moves by this much of itself with a last bit of the inputs says nothing.
NOISE = 0.05


def small(program: corpus.Program, found: Any, args: Sequence[Any]) -> list[Any]:
    """Return random inputs with a batch of `ROWS` rows.

    The weights of a function are normal, each row of a matrix of length 1 in the mean. What a step
    takes is above 0, as an optimizer takes the root of its second moments.
    """
    import jax
    import jax.numpy as jnp

    is_step = program.options.get("mode") == "program"

    batch = batch_of(found)
    call = found.trace.arguments
    leaves, tree = jax.tree.flatten(tuple(args))
    assert len(leaves) == len(call.leaves), program.name
    key, made = jax.random.key(0), []
    for i, leaf in enumerate(leaves):
        if not hasattr(leaf, "shape"):  # a number
            made.append(leaf)
            continue
        shape = leaf.shape
        if batch is not None and i in batch.leaves:
            shape = (min(ROWS, batch.size), *shape[1:])
        each = jax.random.fold_in(key, i)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            drawn = (
                jax.random.uniform(each, shape, jnp.float32, 0.01, 0.1)
                if is_step
                else jax.random.normal(each, shape) / max((1, *shape[-2:-1])) ** 0.5
            )
            made.append(drawn.astype(leaf.dtype))
        elif jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            made.append(jax.random.split(each, shape) if shape else each)
        else:
            made.append(jax.random.randint(each, shape, 0, ROWS).astype(leaf.dtype))
    return list(jax.tree.unflatten(tree, made))


def results(fun: Callable[..., Any], program: corpus.Program, args: Sequence[Any]) -> list[Any]:
    """Return what a step returns, or the value of a function with its gradients."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.clear_caches()  # of the function before it was edited
    if program.options.get("mode") == "program":
        return [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(jax.jit(fun)(*args))]
    leaves, tree = jax.tree.flatten(tuple(args))
    # What is no array stays as it is: numbers, and the functions that Equinox's modules hold.
    arrays = {i: leaf for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype")}
    floats = {i: a for i, a in arrays.items() if jnp.issubdtype(a.dtype, jnp.floating)}
    others = {i: a for i, a in arrays.items() if i not in floats}

    def of_floats(given: dict[int, Any], others: dict[int, Any]) -> Any:
        every = [{**given, **others}.get(i, leaf) for i, leaf in enumerate(leaves)]
        return fun(*jax.tree.unflatten(tree, every))

    found = jax.jit(jax.value_and_grad(of_floats))(floats, others)
    return [np.asarray(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(found)]


def nudged(args: Sequence[Any]) -> list[Any]:
    """Return inputs whose floats are larger by about one part in ten million."""
    import jax
    import jax.numpy as jnp

    def nudge(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.nextafter(leaf, jnp.full_like(leaf, jnp.inf))

    return list(jax.tree.map(nudge, tuple(args)))


def differences(one: Sequence[Any], other: Sequence[Any]) -> list[float]:
    """Return the largest difference of each two arrays, over the largest entry of the first."""
    import numpy as np

    shares = []
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
            shares.append(float("inf"))
            continue
        scale = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a))) or 1.0
        shares.append(float(np.max(np.abs(np.nan_to_num(a - b)), initial=0.0)) / scale)
    return shares


def verdict(apart: Sequence[float], noise: Sequence[float], close: float) -> str:
    """Return whether results are the same, in words.

    Args:
      apart: how far each array is off.
      noise: how far the arrays of the function itself are, with its inputs nudged.
      close: what rounding explains.
    """
    told = [(a, n) for a, n in zip(apart, noise, strict=True) if n < NOISE]
    if not told:
        return "not told: every array is rounding"
    worst = max(a for a, _ in told)
    word = "same" if all(a <= max(close, 10 * n) for a, n in told) else "different"
    return f"{word}: {worst:.1e} (rounding {close:.0e}) in {len(told)} of {len(apart)} arrays"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default="tpu:v5e", help="a place: gpu:h100, tpu:v5e")
    parser.add_argument("--only", default="", metavar="REGEX", help="programs whose name has this")
    parser.add_argument("--most", type=int, default=30, help="how many programs")
    options = parser.parse_args()
    programs = [
        p
        for p in corpus.PROGRAMS
        if not p.is_checkpointed and p.set != "test" and re.search(options.only, p.name)
    ]
    counts = {"same": 0, "different": 0, "by hand": 0, "nothing to write": 0}
    for program in programs[: options.most]:
        fun, args = program.build()
        question = Question(fun, args, on=parse_place(options.on), **program.options)
        found = subject(question)
        low = drafted(found, 1)[0]
        inputs = small(program, found, args)
        # A number among the leaves has no dtype, nor does it decide about rounding.
        dtypes = {str(getattr(leaf, "dtype", "")) for leaf in found.trace.arguments.leaves}
        close = max(CLOSE.get(dtype, 0.0) for dtype in dtypes)
        expected: list[Any] = []
        noise: list[float] = []
        held: dict[tuple[bytes, ...], str] = {}  # budgets may lead to the same code
        for share in SHARES:
            budget = int(low.lowest_nbytes + (low.plain_nbytes - low.lowest_nbytes) * share)
            plan, edits = drafted(found, budget, check=in_process_check(found, question))
            code = tuple(edit.new for edit in edits)
            if plan.unwritten or not edits:
                word = "by hand" if plan.unwritten else "nothing to write"
            elif not plan.verified:
                word = "not verified"
            elif code in held:
                word = held[code]
            else:
                if not expected:
                    expected = results(fun, program, inputs)
                    noise = differences(expected, results(fun, program, nudged(inputs)))
                try:
                    with patched(edits, fun) as new, intercept_bind({}):
                        apart = differences(expected, results(new, program, inputs))
                    word = verdict(apart, noise, close)
                except (UnpatchableError, JaxresidError) as e:
                    word = f"not run here: {' '.join(str(e).split())}"
                held[code] = word
            kind = word.partition(":")[0]
            counts[kind] = counts.get(kind, 0) + 1
            print(f"{program.name:28} {format_bytes(budget):>10}  {word}", flush=True)
        estimates.forget()
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    sys.exit(1 if counts["different"] else 0)


if __name__ == "__main__":
    main()
