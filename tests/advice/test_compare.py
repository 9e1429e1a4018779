"""Comparisons: every row against the report of the code written that way."""

import dataclasses
import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxresid
from fixtures.inspect import block, stack8
from jaxresid.advice.compare import compare as compare_module
from jaxresid.advice.compare import pareto as frontier
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call import inputs as abstract
from jaxresid.results import ComparisonRow, Compiled
from tests.schemas import validate
from tests.where import ROOT

cp = jax.checkpoint_policies
POLICIES = {
    "none": "none",
    "dots_saveable": "dots",
    "dots_with_no_batch_dims_saveable": "dots_no_batch",
    "nothing_saveable": "nothing",
}


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def rows_of(fun, *args, **options):
    found = jaxresid.compare(fun, mode=options.pop("mode", "loss"), **options)(*args)
    return {row.policy: row for row in found.rows}


def assert_is(row, report):
    """That a row says of a policy what a report says of the code written with it."""
    assert row.error is None
    assert row.kept_nbytes == report.totals.computed_nbytes
    assert row.host_nbytes == report.totals.host_nbytes
    assert row.peak_nbytes == report.peak.nbytes
    assert row.recompute_flops == report.cost.recompute.flops
    plain = report.cost.forward.flops + report.cost.backward.flops
    assert row.recompute_fraction == pytest.approx(report.cost.recompute.flops / plain)


@pytest.mark.integration
@pytest.mark.parametrize("form", ["scan", "loop"])
def test_rows_are_the_code_written_with_each_policy(form):
    on = "tpu:v5p"
    args = stack8.inputs(form, layers=3, batch=1, sequence=64, width=64)
    rows = rows_of(stack8.build(form, "dots"), *args, on=on)
    for policy, name in POLICIES.items():
        written = jaxresid.inspect(stack8.build(form, name), mode="loss", on=on)(*args)
        assert_is(rows[policy], written)
    # Of equal rows the first is called the knee.
    as_written = dataclasses.replace(rows["as-written"], policy="dots_saveable", knee=False)
    assert as_written == dataclasses.replace(rows["dots_saveable"], knee=False)


@pytest.mark.integration
def test_rows_of_bare_scans_and_of_everything():
    args = stack8.inputs("scan", layers=3, batch=1, sequence=64, width=64)
    plain = stack8.build("scan", "none")
    whole = rows_of(plain, *args, at="whole")
    bodies = rows_of(plain, *args)
    assert whole["none"].peak_nbytes == bodies["none"].peak_nbytes
    for policy in (None, cp.dots_saveable):
        name = "nothing_saveable" if policy is None else "dots_saveable"
        assert_is(
            whole[name],
            jaxresid.inspect(jax.checkpoint(plain, policy=policy), mode="loss")(*args),
        )
        written = jax.checkpoint(stack8.layer, policy=policy, prevent_cse=False)
        assert_is(
            bodies[name],
            jaxresid.inspect(lambda s, x, w=written: stack8.scan_loss(w, s, x))(*args),
        )


def named(w, x):
    h = checkpoint_name(jnp.sin(x @ w), "hidden")
    u = checkpoint_name(jnp.sin(h @ w), "upper")
    return jnp.sum(jnp.sin(u @ w))


def test_names_alone_together_and_offloaded():
    rows = rows_of(named, f32(8, 8), f32(4, 8))
    for size in (1, 2):
        for names in itertools.combinations(("hidden", "upper"), size):
            text = f"save_only_these_names({', '.join(map(repr, names))})"
            policy = cp.save_only_these_names(*names)
            report = jaxresid.inspect(jax.checkpoint(named, policy=policy), mode="loss")(
                f32(8, 8), f32(4, 8)
            )
            assert_is(rows[text], report)
    offloaded = [r for r in rows.values() if "offloaded=['hidden', 'upper']" in r.policy]
    assert len(offloaded) == 1
    if offloaded[0].error is None:  # 0.7.0 on the CPU has no pinned_host
        assert offloaded[0].host_nbytes == 2 * 4 * 8 * 4
        assert offloaded[0].kept_nbytes == 0
        assert not offloaded[0].pareto


def test_five_names_are_not_tried_in_every_combination():
    def fun(x):
        for i in range(5):
            x = checkpoint_name(jnp.sin(x), f"n{i}")
        return jnp.sum(x)

    saving = [p for p in rows_of(fun, f32(4)) if p.startswith("save_only_these_names")]
    assert len(saving) == 5 + 5 + 1


@pytest.mark.integration
def test_the_place_is_told_by_itself():
    args = block.example_inputs()
    assert jaxresid.compare(block.checkpointed, mode="loss")(*args).at == "all-sites"
    assert jaxresid.compare(block.plain, mode="loss")(*args).at == "whole"
    scan = stack8.inputs("scan", layers=2, batch=1, sequence=16, width=64)
    assert jaxresid.compare(stack8.build("scan", "none"))(*scan).at == "scan-bodies"


@pytest.mark.parametrize(("steps", "at"), [(8, "whole"), (800, "scan-bodies")])
def test_a_scan_that_keeps_next_to_nothing_is_passed_by(steps, at):
    """As in the loss of PPO: a scan over the rewards, beside networks that keep all there is."""

    def loss(w, x, rewards):
        def earlier(after, now):
            return 0.5 * after + jnp.tanh(now), after

        discounted = jax.lax.scan(earlier, rewards[0], rewards[:steps])[1]
        return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w)) + jnp.mean(discounted)

    arguments = f32(64, 64), f32(400, 64), f32(800, 64)
    assert jaxresid.compare(loss)(*arguments).at == at
    assert jaxresid.compare(loss, at="scan-bodies")(*arguments).at == "scan-bodies"


def two_sites(w, x):
    def one(x):
        return jnp.sin(jnp.sin(x @ w) @ w)

    def other(x):
        return jnp.cos(jnp.cos(x @ w) @ w)

    return jnp.sum(jax.checkpoint(other)(jax.checkpoint(one)(x)) ** 2)


@pytest.mark.integration
def test_one_of_two_sites():
    args = f32(8, 8), f32(4, 8)
    for at in ("other", f"{_line('jax.checkpoint(other)')} (other)"):
        rows = rows_of(two_sites, *args, at=at)

        def written(w, x, policy):
            def one(x):
                return jnp.sin(jnp.sin(x @ w) @ w)

            def other(x):
                return jnp.cos(jnp.cos(x @ w) @ w)

            if policy is not None:
                other = jax.checkpoint(other, policy=policy)
            return jnp.sum(other(jax.checkpoint(one)(x)) ** 2)

        for name, policy in (("none", None), ("dots_saveable", cp.dots_saveable)):
            report = jaxresid.inspect(lambda w, x, p=policy: written(w, x, p), mode="loss")(*args)
            assert rows[name].kept_nbytes == report.totals.computed_nbytes
            assert rows[name].peak_nbytes == report.peak.nbytes


def _line(code):
    lines = Path(__file__).read_text().splitlines()
    return f"tests/advice/test_compare.py:{next(i for i, t in enumerate(lines, 1) if code in t)}"


def test_a_policy_around_everything_replaces_the_checkpoints_inside():
    def bare(w, x):
        x = jnp.sin(jnp.sin(x @ w) @ w)
        return jnp.sum(jnp.cos(jnp.cos(x @ w) @ w) ** 2)

    args = f32(8, 8), f32(4, 8)
    rows = rows_of(two_sites, *args, at="whole")
    for name, policy in (("nothing_saveable", None), ("dots_saveable", cp.dots_saveable)):
        written = jax.checkpoint(bare, policy=policy)
        report = jaxresid.inspect(written, mode="loss")(*args)
        assert rows[name].kept_nbytes == report.totals.computed_nbytes
        assert rows[name].recompute_flops == report.cost.recompute.flops


def test_a_place_that_is_not_there_lists_those_that_are():
    with pytest.raises(InputsError, match=r"no place 'decoder'.*all-sites, whole.*\(one\)"):
        jaxresid.compare(two_sites, at="decoder", mode="loss")(f32(8, 8), f32(4, 8))
    with pytest.raises(InputsError, match="did you mean other"):
        jaxresid.compare(two_sites, at="othr", mode="loss")(f32(8, 8), f32(4, 8))
    with pytest.raises(InputsError, match="did you mean segments"):
        jaxresid.compare(two_sites, at="segment", mode="loss")(f32(8, 8), f32(4, 8))
    with pytest.raises(InputsError, match="no scan with more than one trip"):
        jaxresid.compare(two_sites, at="scan-bodies", mode="loss")(f32(8, 8), f32(4, 8))


def test_where_no_rates_are_known_no_time_is_estimated():
    place = "gpu:v100"
    found = jaxresid.compare(two_sites, on=place, mode="loss")(f32(8, 8), f32(4, 8))
    assert found.chip is None
    assert all(row.time_fraction is None for row in found.rows)
    assert all(row.peak_nbytes for row in found.rows)


def test_without_rates_no_plan_offloads():
    with pytest.raises(InputsError, match=r"the transfer rates of cpu are not known.*gpu:h100"):
        jaxresid.plan(two_sites, budget="1MiB", offload=True, on="cpu", mode="loss")(
            f32(8, 8), f32(4, 8)
        )


def raising(*_, **__):
    raise ValueError("no idea")


def nothing_said(*_, **__):
    return None


def factory(*_, **__):
    return cp.dots_saveable


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (raising, "no idea"),
        (nothing_said, "returns None"),
        (factory, "it makes a policy, so call it"),
        (cp.save_only_these_names, "call it"),
    ],
)
def test_a_policy_that_fails_is_a_row_of_its_own(policy, said):
    found = jaxresid.compare(two_sites, policies={"mine": policy}, mode="loss")(
        f32(8, 8), f32(4, 8)
    )
    rows = {row.policy: row for row in found.rows}
    assert said in rows["mine"].error
    assert rows["mine"].peak_nbytes is None
    assert rows["dots_saveable"].error is None


class Unhashable:
    __hash__ = None

    def __call__(self, prim, *_, **__):
        return prim.name == "dot_general"


def test_a_policy_without_a_hash():
    rows = rows_of(two_sites, f32(8, 8), f32(4, 8), policies={"mine": Unhashable()})
    # Without jax_remat3 JAX's own complaint, of differentiating any code with it.
    assert rows["mine"].error in (None, "TypeError: unhashable type: 'Unhashable'")
    if rows["mine"].error is None:
        assert rows["mine"].kept_nbytes == rows["dots_saveable"].kept_nbytes


def test_an_own_policy_is_compared():
    def dots(prim, *_, **__):
        return prim.name == "dot_general"

    rows = rows_of(two_sites, f32(8, 8), f32(4, 8), policies=[dots])
    assert rows["dots"].kept_nbytes == rows["dots_saveable"].kept_nbytes


@pytest.mark.integration
def test_recomputation_takes_time_where_flops_do():
    args = stack8.inputs("scan", layers=4, batch=8, sequence=512, width=1024)
    rows = rows_of(stack8.build("scan", "nothing"), *args, on="tpu:v5e")
    dots = rows["dots_saveable"].time_fraction
    assert rows["none"].time_fraction == 0
    assert rows["nothing_saveable"].time_fraction > dots
    slow = rows_of(stack8.build("scan", "nothing"), *args, on="tpu:v4")
    assert slow["nothing_saveable"].time_fraction != rows["nothing_saveable"].time_fraction


# -- the frontier ------------------------------------------------------------------------------


def test_pareto_equals_its_definition():
    points = [(5, 0), (3, 2), (3, 3), (4, 2), (1, 9), (3, 2), (2, 9), (5, 1)]
    expected = [
        not any((a <= p[0] and b <= p[1]) and (a < p[0] or b < p[1]) for a, b in points)
        for p in points
    ]
    assert list(frontier.pareto(points)) == expected
    assert frontier.pareto([]) == ()


def test_the_knee_is_farthest_below_the_chord():
    assert frontier.knee([(10, 0), (2, 1), (0, 10)]) == (2, 1)
    assert frontier.knee([(10, 0), (4, 3), (2, 4), (0, 10)]) == (2, 4)
    assert frontier.knee([(10, 0), (5, 5), (0, 10)]) is None  # on the line
    assert frontier.knee([(10, 0), (0, 10)]) is None
    assert frontier.knee([(1, 1), (1, 1), (1, 1)]) is None


@pytest.mark.integration
def test_marks_are_among_rows_without_host_bytes():
    args = stack8.inputs("scan", layers=4, batch=1, sequence=128, width=128)
    found = jaxresid.compare(stack8.build("scan", "dots"))(*args)
    device = [r for r in found.rows if not r.error and not r.host_nbytes]
    marked = frontier.pareto([(r.peak_nbytes, r.recompute_flops) for r in device])
    assert [r.pareto for r in device] == list(marked)
    assert sum(r.knee for r in found.rows) == 1
    assert not any(r.pareto for r in found.rows if r.host_nbytes)


def row(policy, estimate, xla, flops=0, **changes):
    compiled = () if xla is None else (Compiled("tpu:v5e", policy, peak_nbytes=xla),)
    return ComparisonRow(
        policy, "whole", peak_nbytes=estimate, recompute_flops=flops, compiled=compiled, **changes
    )


@pytest.mark.parametrize(
    ("peaks", "changed"),
    [
        ([(30, 3), (20, 2), (10, 1)], ""),
        ([(30, 2), (20, 3), (10, 1)], "ab"),
        # Of three in reverse order the middle one keeps its rank.
        ([(30, 1), (20, 2), (10, 3)], "ac"),
        # Equal ones share their ranks.
        ([(30, 2), (20, 2), (10, 1)], ""),
        ([(20, 2), (20, 3), (10, 1)], ""),
        ([(20, 2), (20, 1), (10, 3)], "bc"),
        # Without XLA's figure a row has no rank, and takes none.
        ([(30, 2), (20, None), (10, 1)], ""),
        ([(30, 1), (20, None), (10, 2)], "ac"),
    ],
)
def test_ranks_by_peak_that_xla_changes(peaks, changed):
    found = compare_module._ranked([row(p, *both) for p, both in zip("abc", peaks, strict=True)])
    assert "".join(r.policy for r in found if r.rank_changed) == changed


def test_xlas_peaks_decide_where_all_rows_have_one():
    rows = [row("a", 30, 20, 0), row("b", 20, 30, 5), row("c", 10, 10, 9)]
    failed = ComparisonRow("d", "whole", error="no")

    def marked(rows):
        found = compare_module._with_frontier(compare_module._ranked([*rows, failed]))
        return {r.policy: (r.by, r.compared_nbytes) for r in found if r.pareto}

    assert marked(rows) == {"a": ("xla", 20), "c": ("xla", 10)}
    missing = [*rows[:2], row("c", 10, None, 9)]
    assert marked(missing) == {
        "a": ("estimate", 30),
        "b": ("estimate", 20),
        "c": ("estimate", 10),
    }


# -- model libraries and steps -----------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize(
    ("module", "plain", "checkpointed"),
    [
        pytest.param("nnx_model", "loss", "loss_remat", marks=pytest.mark.slow),
        pytest.param("equinox_model", "loss", "loss_remat", marks=pytest.mark.slow),
        ("linen_model", "loss_scan", "loss_scan_remat"),
        ("nnx_model", "loss_scan", "loss_scan_remat"),
        ("equinox_model", "loss_scan", "loss_scan_remat"),
    ],
)
def test_model_libraries(module, plain, checkpointed):
    pytest.importorskip("equinox" if module == "equinox_model" else "flax")
    model = importlib.import_module(f"fixtures.inspect.{module}")

    def called(name):
        make = getattr(model, f"{name}_inputs", None) or model.example_inputs
        inputs = abstract.from_function(make, name)
        return getattr(model, name), inputs.args, inputs.kwargs

    fun, args, kwargs = called(checkpointed)
    found = jaxresid.compare(fun, mode="loss")(*args, **kwargs)
    rows = {row.policy: row for row in found.rows}
    assert found.at == "all-sites"
    for policy, name in (("none", plain), ("as-written", checkpointed)):
        written, its_args, its_kwargs = called(name)
        report = jaxresid.inspect(written, mode="loss")(*its_args, **its_kwargs)
        assert rows[policy].peak_nbytes == report.peak.nbytes
        assert rows[policy].kept_nbytes == report.totals.computed_nbytes
        assert rows[policy].recompute_flops == report.cost.recompute.flops
    assert not [r.error for r in found.rows if r.error and "offload" not in r.policy]
    middle = (rows["none"].peak_nbytes + rows["nothing_saveable"].peak_nbytes) // 2
    plan = jaxresid.plan(fun, budget=middle, mode="loss")(*args, **kwargs)
    assert plan.is_within
    assert plan.peak_nbytes <= middle
    assert plan.recompute_flops <= rows["nothing_saveable"].recompute_flops


@pytest.mark.integration
def test_steps_are_compared_as_their_losses_are():
    def step(policy):
        def loss(w, x):
            hidden = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x @ w) @ w), policy=policy)(x)
            return jnp.sum(hidden**2)

        return lambda w, x: w - 0.1 * jax.grad(loss)(w, x)

    args = f32(64, 64), f32(32, 64)
    found = jaxresid.compare(step(None), mode="program")(*args)
    rows = {row.policy: row for row in found.rows}
    assert found.target.mode == "program"
    report = jaxresid.inspect(step(cp.dots_saveable), mode="program")(*args)
    assert rows["dots_saveable"].peak_nbytes == report.peak.nbytes
    assert rows["dots_saveable"].kept_nbytes == report.totals.computed_nbytes
    # A report of a step undoes the checkpoint in what JAX made of it, see step_checkpoints.
    plain = report.cost.total.flops - report.cost.recompute.flops
    assert rows["dots_saveable"].recompute_flops == pytest.approx(
        report.cost.recompute.flops, abs=0.02 * plain
    )
    whole = jaxresid.compare(step(None), at="whole", mode="program")(*args)
    assert whole.places == ("step.<locals>.loss",) or whole.places == ("loss",)


# -- the command line --------------------------------------------------------------------------


def run(*argv, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "jaxresid", *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


@pytest.mark.integration
def test_json_on_the_command_line():
    done = run("compare", "fixtures/inspect/block.py:checkpointed", "-f", "json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    validate(data, "compare")
    assert [row["policy"] for row in data["rows"]][:2] == ["none", "as-written"]


@pytest.mark.integration
def test_a_failing_policy_on_the_command_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import jax\n\ndef broken(*_, **__):\n    return None\n\n"
        "dots = jax.checkpoint_policies.dots_saveable\n"
    )
    target = str(ROOT / "fixtures/inspect/block.py:checkpointed")
    done = run(
        *("compare", target, "-f", "json", "--policy", "mine:broken", "--policy", "mine:dots"),
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("jaxresid: error: --policy mine:broken")
    rows = {row["policy"]: row for row in json.loads(done.stdout)["rows"]}
    assert "returns None" in rows["mine:broken"]["error"]
    assert rows["mine:broken"]["peak_nbytes"] is None
    assert rows["mine:dots"]["peak_nbytes"] == rows["dots_saveable"]["peak_nbytes"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "dots_savable"), "no policy 'dots_savable'; did you mean `dots_saveable`"),
        (("--policy", "save_only_these_names('x')"), "no policy \"save_only_these_names('x')\""),
        (("--policy", "fixtures.inspect.block:missing"), "has no attribute 'missing'"),
        (("--at", "nowhere"), "no place 'nowhere'"),
        (("--on", "gpu:abacus"), "h100"),
    ],
)
def test_bad_input_is_one_line(options, said):
    done = run("compare", "fixtures/inspect/block.py:checkpointed", *options)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("budget", ["lots", "0", "-1GiB"])
def test_a_budget_that_cannot_be_parsed(budget):
    done = run("plan", "fixtures/inspect/block.py:checkpointed", "--budget", budget)
    assert done.returncode == 2
    assert "budget" in done.stderr


@pytest.mark.integration
def test_exit_codes_of_a_plan():
    target = "fixtures/inspect/block.py:checkpointed"
    enough = run("plan", target, "--budget", "1GiB", "-f", "json")
    assert enough.returncode == (0 if json.loads(enough.stdout)["fits"] else 1)
    none = run("plan", target, "--budget", "1KiB", "-f", "json")
    assert none.returncode == 1
    data = json.loads(none.stdout)
    assert not data["fits"]
    assert data["lowest_nbytes"] == data["peak_nbytes"]


@pytest.mark.integration
def test_named_policies_are_compared_alone():
    def labels(*policies):
        return [
            row.policy
            for row in jaxresid.compare(named, policies=policies)(f32(8, 8), f32(4, 8)).rows
        ]

    every = labels()
    assert labels("dots_saveable") == ["none", "as-written", "dots_saveable"]
    assert labels("checkpoint_dots") == ["none", "as-written", "dots_saveable"]  # JAX's other name
    assert labels("none") == ["none", "as-written"]
    assert labels("everything_saveable", "dots_saveable") == [
        *("none", "as-written", "everything_saveable", "dots_saveable")
    ]
    own = jax.checkpoint_policies.save_only_these_names("mine")
    assert labels(own, "dots_saveable")[2:] == ["save_only_these_names('mine')", "dots_saveable"]
    assert set(labels(own)) == {*every, "save_only_these_names('mine')"}
