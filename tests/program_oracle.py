"""What JAX itself says of a program of `tests/random_programs.py`, and what jaxresid says.

Nothing here reads a jaxpr: the residuals are the leaves of the function that `jax.vjp` returns,
and every command is run as a user runs it, on files, through its exit code and its JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import types
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxresid.cli.main import run
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import OpSources, peak
from jaxresid.inspector.program.build import value_and_gradients
from jaxresid.inspector.report import subject
from jaxresid.inspector.residuals.function import residuals
from jaxresid.inspector.trace.function import Trace
from jaxresid.results import Residual
from jaxresid.results.values import totals_of
from tests.random_programs import Program

Row = tuple[str, tuple[int, ...], int]


# Text shows what JSON has, and costs as much: of one program in so many.
TEXT_EVERY = 5


class Refused(Exception):
    """JAX itself cannot differentiate a program."""


def module(source: str, name: str) -> types.ModuleType:
    """Return a program as a module."""
    made = types.ModuleType(name)
    exec(compile(source, name, "exec", dont_inherit=True), made.__dict__)
    return made


def kept(source: str, name: str = "program") -> Counter[Row]:
    """Return the leaves of the real `jax.vjp`, traced: (dtype, shape, bytes) of each.

    Raises:
      Refused: JAX cannot differentiate it, forward or backward.
    """
    made = module(source, name)
    flat, tree = jax.tree.flatten(made.loss_inputs())
    arrays = [i for i, leaf in enumerate(flat) if hasattr(leaf, "dtype")]
    wrt = [i for i in arrays if jnp.issubdtype(flat[i].dtype, jnp.inexact)]
    rest = [i for i in arrays if i not in wrt]

    def differentiated(values: list[Any], others: list[Any]) -> Any:
        def of(*values: Any) -> Any:
            leaves = list(flat)
            for i, value in zip((*wrt, *rest), (*values, *others), strict=True):
                leaves[i] = value
            return made.loss(*tree.unflatten(leaves))

        out, pulled = jax.vjp(of, *values)
        return pulled, pulled(jax.tree.map(_cotangent, out))

    try:
        pulled, _ = jax.eval_shape(differentiated, [flat[i] for i in wrt], [flat[i] for i in rest])
    except Exception as e:
        raise Refused(f"{type(e).__name__}: {str(e).splitlines()[0]}") from e
    return Counter(map(_row, jax.tree.leaves(pulled)))


def _cotangent(value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return jnp.ones_like(value)
    return np.zeros(value.shape, jax.dtypes.float0)


def _row(leaf: Any) -> Row:
    return str(leaf.dtype), tuple(leaf.shape), leaf.dtype.itemsize * math.prod(leaf.shape)


@dataclass(frozen=True)
class Ran:
    """A command that was run."""

    command: str
    code: int
    out: str
    err: str

    @property
    def problem(self) -> str | None:
        """What is wrong with how it ended: an internal error, a traceback, an unknown code, or an
        error that does not say what it is; None where nothing is."""
        text = self.out + self.err
        for bad in ("internal error", "Traceback (most recent call last)", "bug in jaxresid"):
            if bad in text:
                return _excerpt(self.err, bad)
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}"
        if self.code == 2 and "error: " not in self.err.lower():
            return "exit code 2 without a message"
        return None

    def json(self) -> Any:
        return json.loads(self.out)


def _excerpt(text: str, word: str) -> str:
    lines = [line for line in text.splitlines() if word in line]
    return (lines or text.splitlines()[-1:])[0].strip()[:300]


def ran(*argv: object) -> Ran:
    """Run a command of jaxresid in this process."""
    words = [str(word) for word in argv]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return Ran(" ".join(words), code, out.getvalue(), err.getvalue())


def rows(report: Any) -> Counter[Row]:
    """Return the residuals of a report's JSON."""
    return Counter((r["dtype"], tuple(r["shape"]), r["nbytes"]) for r in report["residuals"])


def rows_of(residuals: tuple[Residual, ...]) -> Counter[Row]:
    """Return residuals as `rows` does."""
    return Counter((r.aval.dtype, tuple(r.aval.shape), r.aval.nbytes) for r in residuals)


@dataclass(frozen=True)
class Checked:
    """What was found of one program.

    Attributes:
      wrong: what jaxresid says that is not so, and how its commands end badly.
      counts: how many things were compared.
    """

    wrong: tuple[str, ...]
    counts: Counter[str]


def check(program: Program, folder: Path, commands: tuple[str, ...]) -> Checked:
    """Compare all that jaxresid says of a program with JAX.

    Args:
      folder: where its files may be written.
      commands: which are run besides `report`.
    """
    wrong: list[str] = []
    counts: Counter[str] = Counter(programs=1)
    path = folder / f"p{program.seed}.py"
    path.write_text(program.source(), encoding="utf-8")
    target = f"{path}:loss"

    def run_(*argv: object) -> Ran:
        done = ran(*argv)
        counts["commands"] += 1
        if done.problem:
            wrong.append(f"{done.command}: {done.problem}")
        return done

    try:
        leaves = kept(program.source(), path.name)
    except Refused as e:
        counts["refused by JAX"] += 1
        done = run_("report", target, "--mode", "loss")
        if done.code == 0:
            wrong.append(f"{done.command}: reported, but JAX says {e}")
        return Checked(tuple(wrong), counts)
    done = run_("report", target, "--mode", "loss", "-f", "json")
    if done.code:
        if not done.problem:
            wrong.append(f"{done.command}: {done.err.strip()[:300]}")
        return Checked(tuple(wrong), counts)
    report = done.json()
    wrong += _negative(done, report)
    counts["residuals"] += 1
    if rows(report) != leaves:
        wrong.append(
            f"{done.command}: residuals: {dict(rows(report) - leaves)} too many,"
            f" {dict(leaves - rows(report))} missing"
        )
    wrong += _counterfactuals(program, report, folder, counts)
    if program.seed % TEXT_EVERY == 0:
        run_("report", target, "--mode", "loss")
    for command in commands:
        if command == "plan":
            wrong += _plan(program, report, folder, counts)
        else:
            on = ("--on", "cpu") if command in ("compile", "sweep") else ()
            policy = ("--policy", "as-written") if command == "sweep" else ()
            said = run_(command, target, "--mode", "loss", *on, *policy, "-f", "json")
            if said.out and not said.problem:
                wrong += _negative(said, said.json())
    return Checked(tuple(wrong), counts)


def _negative(done: Ran, said: Any, name: str = "") -> list[str]:
    """Return the figures of a command's JSON that are below zero, of what is recomputed."""
    if isinstance(said, dict):
        return [w for key, value in said.items() for w in _negative(done, value, f"{name}.{key}")]
    if isinstance(said, list):
        return [w for value in said for w in _negative(done, value, name)]
    if "recompute" in name and isinstance(said, int | float) and said < 0:
        return [f"{done.command}: {name} is {said}"]
    return []


def _counterfactuals(
    program: Program, report: Any, folder: Path, counts: Counter[str]
) -> list[str]:
    """Return where what is kept without a checkpoint is not what the source without it keeps."""
    wrong = []
    for row in report["checkpoints"]:
        line = (row["location"] or {}).get("line", 0)
        what = f"p{program.seed}.py:{line} {row['function']}"
        number = program.site_at(line)
        if number is None:
            wrong.append(f"{what}: a checkpoint stands where there is none")
            continue
        if row.get("kept_without_nbytes") is None:
            counts["not judged"] += 1
            continue
        counts["counterfactuals"] += 1
        source = program.source(without=number)
        name = f"p{program.seed}_without_{number}.py"
        try:
            leaves = kept(source, name)
        except Refused as e:
            wrong.append(f"{what}: judged, but without it JAX says {e}")
            continue
        bare = _unjudged(source, name)
        if rows_of(bare.residuals) != leaves:
            wrong.append(f"{name}: residuals differ from those of jax.vjp")
            continue
        real, claimed = bare.computed_nbytes, row["kept_without_nbytes"]
        if real != claimed:
            wrong.append(f"{what}: kept without it {claimed} B claimed, {real} B real")
        real, claimed = bare.peak_nbytes, row["peak_without_nbytes"]
        if abs(real - claimed) > 0.01 * real:
            counts["peaks without that differ by over 1 %"] += 1
    return wrong


@dataclass(frozen=True)
class _Unjudged:
    """What jaxresid says of a program without asking what its checkpoints are worth, which would
    take most of the time."""

    residuals: tuple[Residual, ...]
    computed_nbytes: int
    peak_nbytes: int


def _unjudged(source: str, name: str) -> _Unjudged:
    made = module(source, name)
    found = subject(Question(made.loss, tuple(made.loss_inputs()), mode="loss"))
    assert isinstance(found.trace, Trace)
    program = value_and_gradients(found.trace)
    held = residuals(found.trace, program)
    estimate = peak(lower(program, found.profile), OpSources(found.trace)).peak
    return _Unjudged(held, totals_of(held).computed_nbytes, estimate.nbytes)


def _plan(program: Program, report: Any, folder: Path, counts: Counter[str]) -> list[str]:
    """Return where a plan's written code does not give what the plan promises."""
    path = folder / f"plan{program.seed}.py"
    path.write_text(program.source(), encoding="utf-8")
    target = f"{path}:loss"
    budget = int(report["peak"]["nbytes"] * (0.97, 0.85, 0.7)[program.seed % 3])
    done = ran("plan", target, "--mode", "loss", "--budget", f"{budget}B", "-f", "json", "--write")
    counts["commands"] += 1
    if done.problem:
        return [f"{done.command}: {done.problem}"]
    if done.code not in (0, 1):
        counts["plans refused"] += 1
        if "promised" in done.err or "cannot be traced" in done.err:
            return [f"{done.command}: {done.err.strip()[:300]}"]
        return []
    promised = done.json()
    if promised["peak_nbytes"] > budget:
        counts["plans: nothing fits"] += 1
        return []
    counts["plans written"] += 1
    if below_zero := _negative(done, promised):
        return below_zero
    # Under another name: the module that was planned for is loaded in this process.
    path = path.rename(folder / f"written{program.seed}.py")
    again = ran("report", f"{path}:loss", "--mode", "loss", "-f", "json")
    if again.code:
        return [f"{done.command}: what was written: {again.err.strip()[:300]}"]
    peak = again.json()["peak"]["nbytes"]
    if peak != promised["estimate_nbytes"] or (peak > budget and not promised["confirmed"]):
        return [f"{done.command}: {promised['estimate_nbytes']} B promised, {peak} B given"]
    try:
        kept(path.read_text(encoding="utf-8"), path.name)
    except Refused as e:
        return [f"{done.command}: JAX refuses what was written: {e}"]
    return []
