"""What the models of `zoo.py` take on the GPU that is here: bytes at the peak, seconds of a step.

    python tests/benchmarks/on_gpu.py run FILE [--workers N] [--limit SECONDS] [--only TEXT]
    python tests/benchmarks/on_gpu.py time FILE [--limit SECONDS] [--only TEXT]
    python tests/benchmarks/on_gpu.py judge FILE...

`run` compiles value and gradients of each case for the GPU and runs them once, in a process of
their own (`peak_bytes_in_use` cannot be set back), and appends what XLA says that they take and
what the allocator saw to FILE, as JSON lines; `XLA_PYTHON_CLIENT_PREALLOCATE=false` lets several
workers share the GPU. `time` runs one case after the other, alone, and appends the median seconds
of ten runs. What is in FILE without an error is not run again. `judge` needs no GPU: it holds XLA's
bytes and the peak's estimate against what was measured, and the roofline's ratios between
placements of one model against the measured ones.

`tests/data/gpu/` keeps what was measured. The peak holds what autotuning took while it compiled,
which is why convolutions take more there than XLA says.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import zoo

GIB = 1 << 30
RUNS = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "time"):
        command = commands.add_parser(name)
        command.add_argument("file", type=Path)
        command.add_argument("--workers", type=int, default=1)
        command.add_argument("--limit", type=float, default=float("inf"), help="in seconds")
        command.add_argument("--only", default="", help="cases whose name contains this")
    commands.add_parser("judge").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "judge":
        judge([row for file in options.files for row in lines(file)])
    else:
        collect(options)


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def collect(options):
    """Run each case that FILE lacks in a process of its own; append each row as it is known."""
    deadline = time.monotonic() + options.limit
    done = [row for row in lines(options.file) if "error" not in row]
    known = {row["case"] for row in done if row["kind"] == options.command}
    cases = [c for c in zoo.CASES if options.only in c.name and c.name not in known]
    context = multiprocessing.get_context("spawn")

    def of(case):
        if time.monotonic() > deadline:
            return
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=in_child, args=(case.name, options.command, theirs))
        child.start()
        theirs.close()
        try:
            row = ours.recv()
        except EOFError:
            row = {"error": "the process died"}
        child.join()
        with options.file.open("a") as file:
            file.write(json.dumps({"case": case.name, "kind": options.command, **row}) + "\n")
        print(case.name, row, flush=True)

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(of, cases))


def in_child(name, kind, pipe):
    """Send what running `zoo`'s case `name` gives: bytes for kind `run`, seconds for `time`."""
    case = next(c for c in zoo.CASES if c.name == name)
    try:
        pipe.send(measured(case, timed=kind == "time"))
    except jax.errors.JaxRuntimeError as e:
        pipe.send({"error": str(e).split("\n", 1)[0][:200]})


def measured(case, *, timed):
    fun, abstract = case.build("tpu")
    floats = tuple(
        i
        for i, arg in enumerate(abstract)
        if all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(arg))
    )
    step = jax.jit(jax.value_and_grad(fun, argnums=floats))
    began = time.monotonic()
    compiled = step.lower(*abstract).compile()
    compiling = time.monotonic() - began
    args = jax.block_until_ready(jax.tree.map(filled, abstract))
    device = jax.devices()[0]
    before = device.memory_stats()["bytes_in_use"]
    out = jax.block_until_ready(compiled(*args))
    stats = device.memory_stats()
    found = compiled.memory_analysis()
    row = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "arguments": found.argument_size_in_bytes,
        "output": found.output_size_in_bytes,
        "temp": found.temp_size_in_bytes,
        "alias": found.alias_size_in_bytes,
        "arguments_in_use": before,
        "peak_in_use": stats["peak_bytes_in_use"],
        "compile_s": round(compiling, 2),
    }
    if timed:
        seconds = []
        for _ in range(RUNS + 2):
            del out
            began = time.perf_counter()
            out = jax.block_until_ready(compiled(*args))
            seconds.append(time.perf_counter() - began)
        row["seconds"] = statistics.median(seconds[2:])
        row["spread"] = max(seconds[2:]) / min(seconds[2:])
    return row


def filled(leaf):
    """Return an array like `leaf`: uniform in [-0.05, 0.05), or zeros where it holds integers."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.zeros(leaf.shape, leaf.dtype)
    key = jax.random.key(leaf.size % 1009)
    return jax.random.uniform(key, leaf.shape, leaf.dtype, -0.05, 0.05)


def judge(rows):
    cases = {case.name: case for case in zoo.CASES}
    ran = {row["case"]: row for row in rows if row["kind"] == "run" and "peak_in_use" in row}
    died = len({row["case"] for row in rows if row["kind"] == "run"} - ran.keys())
    print(", ".join(sorted({f"{row['device']}, jax {row['jax']}" for row in ran.values()})))
    print(f"{len(ran)} cases ran, {died} did not; measured: peak_bytes_in_use\n")
    compiler, estimates, modelled = {}, {}, {}
    print(f"{'case':30} {'measured':>9} {'XLA':>9} {'estimate':>9}  GiB")
    for name, row in ran.items():
        compiler[name] = row["arguments"] + row["output"] + row["temp"] - row["alias"]
        estimates[name], modelled[name] = judged(cases[name])
        figures = (row["peak_in_use"], compiler[name], estimates[name])
        print(f"{name:30} " + " ".join(f"{figure / GIB:9.2f}" for figure in figures), flush=True)
    print()
    for label, figures in (("XLA's bytes", compiler), ("the estimate", estimates)):
        errors = sorted(abs(figures[n] / row["peak_in_use"] - 1) for n, row in ran.items())
        print(
            f"{label}: off by {statistics.median(errors):.1%} in the median, nine of ten within "
            f"{errors[int(0.9 * (len(errors) - 1))]:.1%}, {errors[-1]:.1%} at worst"
        )
    seconds = {r["case"]: r["seconds"] for r in rows if r["kind"] == "time" and "seconds" in r}
    judge_times(seconds, modelled)


def judged(case):
    """Return the peak's estimate in bytes and the roofline's seconds for value and gradients."""
    from jaxresid.advice.timing import chips, roofline
    from jaxresid.inspector import report
    from jaxresid.inspector.call.question import Question
    from jaxresid.inspector.subject.base import gc_paused

    fun, args = case.build("tpu")
    with gc_paused():
        subject = report.subject(Question(fun, args, on="gpu:h100"))
        variant = subject.variants().variant({})
        taken = roofline.seconds(variant.lowered, chips.chip_of(subject.place))
    return variant.peak_nbytes, taken.total


def judge_times(measured, modelled):
    """Print seconds of placements over those of the same model without a checkpoint."""
    errors = []
    for name, seconds in measured.items():
        model, policy = name.rsplit("/", 1)
        plain = f"{model}/none"
        if policy == "none" or plain not in measured or not {name, plain} <= modelled.keys():
            continue
        ratio, expected = seconds / measured[plain], modelled[name] / modelled[plain]
        errors.append(abs(expected / ratio - 1))
        print(f"{name:30} takes {ratio:.2f} times as long, {expected:.2f} by the roofline")
    if errors:
        errors.sort()
        print(
            f"{len(errors)} ratios of seconds: off by {statistics.median(errors):.1%} in the "
            f"median, nine of ten within {errors[int(0.9 * (len(errors) - 1))]:.1%}"
        )


if __name__ == "__main__":
    sys.exit(main())
