"""Plans with fewer checkpoints in a solver's loop, against the loop written with as many."""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.advice.plan.solver_loops import solver_of, variants_of
from jaxresid.cli.main import run
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject

ROWS, WIDTH, STEPS = 2048, 64, 100
ARRAYS = (jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32),)
ARRAYS += (jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),)
PROGRAM = f"""
import equinox.internal as eqxi
import jax
import jax.numpy as jnp

def loss(w, x):
    return eqxi.while_loop(
        lambda c: c[0] < 3,
        lambda c: (c[0] + 0.1, jnp.tanh(c[1] @ w)),
        (jnp.float32(0), x),
        max_steps={STEPS},
        kind="checkpointed",
        checkpoints=13,
    )[1].sum()
"""


def solving(checkpoints=13, max_steps=STEPS):
    eqxi = pytest.importorskip("equinox.internal")

    def loss(w, x):
        start = jnp.float32(0), x
        kind = {"max_steps": max_steps, "kind": "checkpointed", "checkpoints": checkpoints}
        step = lambda c: (c[0] + 0.1, jnp.tanh(c[1] @ w))
        return eqxi.while_loop(lambda c: c[0] < 3, step, start, **kind)[1].sum()

    return loss


def flops(report):
    return report.cost.forward.flops + report.cost.backward.flops


@pytest.mark.integration
def test_the_most_checkpoints_that_fit():
    found = {c: jaxresid.inspect(solving(c))(*ARRAYS) for c in (9, 10, 13)}
    peaks = {c: report.peak.nbytes for c, report in found.items()}
    assert peaks[9] < peaks[10] < peaks[13]
    plan = jaxresid.plan(solving(), budget=peaks[9])(*ARRAYS)
    (site,) = plan.sites
    assert (site.kind, [part.checkpoints for part in site.parts]) == ("solver", [9])
    assert plan.peak_nbytes == peaks[9]
    (by_hand,) = plan.unwritten
    assert by_hand.endswith("by hand: checkpoints=9")
    assert plan.recompute_flops == flops(found[9]) - flops(found[13]) > 0
    assert "checkpoints=9" in next(row for row in plan.selection.front if row.chosen).checkpoints
    assert not [each for each in plan.lower_bound.remedies if each.kind == "solver"]
    # The loop itself is as it was.
    assert jaxresid.inspect(solving())(*ARRAYS).peak.nbytes == peaks[13]


@pytest.mark.integration
def test_the_file_with_the_plan_written(tmp_path, monkeypatch, capsys):
    pytest.importorskip("equinox")
    (tmp_path / "solved.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    given = ("solved.py:loss", "--arg", f"f32[{WIDTH},{WIDTH}]", "--arg", f"f32[{ROWS},{WIDTH}]")
    given = (*given, "--on", "gpu:h100", "-f", "json")
    run(["report", *given])
    before = json.loads(capsys.readouterr().out)
    budget = f"{before['peak']['nbytes'] - 1_000_000}B"
    run(["plan", *given, "--budget", budget, "--write"])
    plan = json.loads(capsys.readouterr().out)
    (site,) = plan["sites"]
    (part,) = site["parts"]
    written = (tmp_path / "solved.py").read_text()
    assert written == PROGRAM.replace("checkpoints=13", f"checkpoints={part['checkpoints']}")
    assert part["checkpoints"] < 13
    sys.modules.pop("solved", None)
    run(["report", *given])
    after = json.loads(capsys.readouterr().out)
    # Where the compiler is installed the peak of what is written is confirmed, and is its figure.
    assert after["peak"]["nbytes"] == plan["estimate_nbytes"]
    assert plan["peak_nbytes"] <= int(budget[:-1])
    more = [after["cost"][k] - before["cost"][k] for k in ("forward_flops", "backward_flops")]
    assert sum(more) == plan["recompute_flops"] > 0


@pytest.mark.integration
def test_a_number_that_no_loop_alone_has_is_no_choice():
    loop = pytest.importorskip("equinox.internal").while_loop
    kind = {"max_steps": STEPS, "kind": "checkpointed"}

    def both(w, x, other):
        y = loop(lambda y: y.sum() < 3, lambda y: jnp.sin(y @ w), x, checkpoints=13, **kind)
        return loop(lambda y: y.sum() < 3, lambda y: y @ w, y, checkpoints=other, **kind).sum()

    def solver(other):
        question = Question(functools.partial(both, other=other)).of(ARRAYS, {})
        return solver_of(variants_of(subject(question)))

    assert solver(13) is None
    assert solver(12).place.location.code.startswith("y = loop(")


@pytest.mark.integration
def test_steps_that_are_not_known_leave_a_line():
    unknown = solving(13, None)
    peak = jaxresid.inspect(unknown)(*ARRAYS).peak.nbytes
    plan = jaxresid.plan(unknown, budget=peak // 2)(*ARRAYS)
    assert "solver" not in [site.kind for site in plan.sites]
    (remedy,) = [each for each in plan.lower_bound.remedies if each.kind == "solver"]
    count = int(remedy.change.removesuffix(" in place of 13").rpartition(" ")[2])
    assert remedy.change.startswith(f"equinox.internal.while_loop(..., checkpoints={count}), ")
    assert remedy.peak_nbytes == jaxresid.inspect(solving(count, None))(*ARRAYS).peak.nbytes
