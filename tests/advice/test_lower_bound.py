"""What no checkpoint can remove, against byte counts of trees; what lowers a plan's peak, against
reports of the same programs written by hand; and what plans say they tried."""

import functools
import os
import re
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxresid
from jaxresid.advice.plan.lower_bound import remedies
from jaxresid.advice.plan.lower_bound.remedies import Remedies, batch_of
from jaxresid.advice.plan.search import menus
from jaxresid.base import crashes
from jaxresid.base.errors import RetraceError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.findings.proposals import Proposal
from jaxresid.inspector.holes.program import ProgramHoles
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.variants.checkpoints import CheckpointVariants
from jaxresid.render.tables.lower_bound import remedy_text
from jaxresid.results import Finding, Interval, Source
from tests.plans import drafted, planned
from tests.shared_variants import sharing_variants

ON = "tpu:v5p"
# Before it avals do not tell what is in host memory, and no peak is lower for it.
TELLS_HOST = jax.__version_info__ >= (0, 7, 1)
WIDTH, ROWS, LAYERS = 256, 4096, 6


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def bytes_of(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def layer(x, w):
    return jnp.tanh(jnp.tanh(x @ w) @ w), None


def loss(params, x, y):
    x, _ = jax.lax.scan(layer, x, params["layers"])
    return jnp.mean((x @ params["head"] - y) ** 2)


def checkpointed_loss(params, x, y):
    x, _ = jax.lax.scan(jax.checkpoint(layer, prevent_cse=False), x, params["layers"])
    return jnp.mean((x @ params["head"] - y) ** 2)


def parameters(dtype=jnp.float32):
    struct = jax.ShapeDtypeStruct
    layers = struct((LAYERS, WIDTH, WIDTH), dtype)
    return {"layers": layers, "head": struct((WIDTH, WIDTH), dtype)}


def inputs(rows=ROWS):
    return parameters(), f32(rows, WIDTH), f32(rows, WIDTH)


def step(params, momentum, x, y, of=checkpointed_loss):
    value, gradient = jax.value_and_grad(of)(params, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    norm = sum(jnp.sum(m**2) for m in jax.tree.leaves(momentum))
    return (
        value,
        jax.tree.map(lambda p, m: p - 0.1 / (1 + norm) * m, params, momentum),
        momentum,
    )


def plain_step(params, momentum, x, y):
    return step(params, momentum, x, y, loss)


def donated_step(params, momentum, x, y):
    return jax.jit(step, donate_argnums=(0, 1))(params, momentum, x, y)


def step_inputs(rows=ROWS):
    params, x, y = inputs(rows)
    return params, params, x, y


def traced(fun, args, mode="auto", argnums=None):
    return subject(Question(fun, args, mode=mode, argnums=argnums, on=ON))


@functools.cache
def traced_once(fun, argnums=None):
    """What a function or step of this module is with the usual inputs; nothing may patch it."""
    takes_state = fun not in (loss, checkpointed_loss)
    return traced(fun, step_inputs() if takes_state else inputs(), argnums=argnums)


@functools.cache
def lowest(fun, argnums=None):
    """The plan of it that needs least memory."""
    return planned(traced_once(fun, argnums), 1)


def peak_of(fun, args, mode="auto", argnums=None):
    return traced(fun, args, mode, argnums).peak.nbytes


def remedy(plan, kind, which=0):
    return [each for each in plan.lower_bound.remedies if each.kind == kind][which]


def parts(plan):
    return {(part.kind, part.until_update): part for part in plan.lower_bound.parts}


# --- the floor, against trees and reports ------------------------------------------------------


@pytest.mark.parametrize("argnums", [None, 0])
def test_the_floor_of_a_function_is_its_arguments_gradients_and_outputs(argnums):
    args = inputs()
    found, plan = traced_once(loss, argnums), lowest(loss, argnums)
    wanted = args if argnums is None else args[:1]
    names = ("params", "x", "y")[: len(wanted)]
    gradients = jax.eval_shape(
        lambda *args: jax.vjp(lambda *w: loss(*w, *args[len(wanted) :]), *args[: len(wanted)])[1](
            1.0
        ),
        *args,
    )
    each = parts(plan)
    assert each["differentiated", False].nbytes == bytes_of(wanted)
    assert each["differentiated", False].arguments == names
    assert each["gradient", False].nbytes == bytes_of(gradients)
    assert each["gradient", False].arguments == names
    assert each["output", False].nbytes == 4
    if argnums is not None:
        assert each["argument", False].nbytes == bytes_of(args[1:])
        assert each["argument", False].arguments == ("x", "y")
    peak = found.peak
    assert plan.lower_bound.nbytes == plan.lower_bound.held_nbytes
    assert plan.lower_bound.nbytes == peak.arguments_nbytes + peak.outputs_nbytes
    assert plan.lower_bound.without  # an optimizer's state is not in a loss


@pytest.mark.integration
def test_the_floor_of_a_step_is_told_by_what_the_arguments_are():
    args = step_inputs()
    plan = lowest(step)
    each = parts(plan)
    assert each["parameters", False].nbytes == bytes_of(args[0])
    assert each["optimizer-state", False].nbytes == bytes_of(args[1])
    assert each["optimizer-state", False].arguments == ("momentum",)
    assert each["batch", False].nbytes == bytes_of(args[2:])
    assert each["updated", False].nbytes == bytes_of(args[:2])
    assert each["updated", False].arguments == ("params", "momentum")
    assert each["output", False].nbytes == 4
    # Gradients have room where the new values will be.
    assert ("gradient", True) not in each
    assert plan.lower_bound.without == ()


@pytest.mark.integration
def test_gradients_are_there_until_the_update_where_everything_is_donated():
    args = step_inputs()
    plan = lowest(donated_step)
    each = parts(plan)
    loss_nbytes = 4  # has room for as much of them
    assert each["gradient", True].nbytes == bytes_of(args[0]) - loss_nbytes
    assert ("updated", False) not in each
    assert plan.lower_bound.held_nbytes == bytes_of(args) + loss_nbytes
    assert plan.lower_bound.nbytes == bytes_of(args) + bytes_of(args[0]) <= plan.lowest_nbytes


def over(count, explicit=False):
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return AbstractMesh((count,), ("data",), axis_types=(kind,))


def split(tree, mesh, *spec):
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )


@pytest.mark.integration
def test_over_a_mesh_the_floor_is_of_one_device():
    mesh = over(4)
    params, x, y = inputs()
    args = split(params, mesh), split(x, mesh, "data"), split(y, mesh, "data")
    each = parts(planned(traced(loss, args, argnums=0), 1))
    assert each["differentiated", False].nbytes == bytes_of(params)
    assert each["gradient", False].nbytes == bytes_of(params)
    assert each["argument", False].nbytes == bytes_of((x, y)) // 4


@pytest.mark.parametrize("fun", [loss, step, donated_step])
def test_no_plan_is_below_its_floor(fun):
    plan = lowest(fun)
    assert 0 < plan.lower_bound.nbytes <= plan.lowest_nbytes <= plan.peak_nbytes


# --- what lowers it, against programs written by hand -------------------------------------------


def test_donation_is_worth_what_a_donating_step_is():
    args = step_inputs()
    found = remedy(lowest(step), "donation")
    assert found.peak_nbytes == peak_of(donated_step, args)
    assert found.saved_nbytes == peak_of(step, args) - found.peak_nbytes
    assert "params, momentum" in found.change and "donate_argnums=(0, 1)" in found.change
    kinds = [each.kind for each in lowest(donated_step).lower_bound.remedies]
    assert "donation" not in kinds


def offloading_loss(which):
    """The loss with one value of each layer in host memory, and all else computed again."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["moved"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def layer(x, w):
        made = []
        for made_by in (lambda: x @ w, lambda: jnp.tanh(made[0]), lambda: made[1] @ w):
            value = made_by()
            made.append(checkpoint_name(value, "moved") if len(made) == which else value)
        return jnp.tanh(made[2]), None

    def offloaded(params, x, y):
        body = jax.checkpoint(layer, policy=policy, prevent_cse=False)
        x, _ = jax.lax.scan(body, x, params["layers"])
        return jnp.mean((x @ params["head"] - y) ** 2)

    return offloaded


@pytest.mark.integration
@pytest.mark.skipif(not TELLS_HOST, reason="avals of JAX 0.7.0 do not tell what is on the host")
def test_offloading_is_worth_what_the_best_offloading_policy_is():
    args = inputs()
    plan = lowest(loss, 0)
    found = remedy(plan, "offload")
    by_hand = [peak_of(offloading_loss(which), args, argnums=0) for which in range(3)]
    assert found.peak_nbytes == min(by_hand)
    values = ("x @ w", "jnp.tanh(x @ w)", "jnp.tanh(x @ w) @ w")
    least = {v for v, nbytes in zip(values, by_hand, strict=True) if nbytes == min(by_hand)}
    assert any(f"offload `{value}` at " in found.change for value in least)
    allowed = drafted(traced_once(loss, 0), 1, offload=True)[0]
    assert "offload" not in {each.kind for each in allowed.lower_bound.remedies}
    assert allowed.lowest_nbytes <= found.peak_nbytes


def returning_gradients(params, x, y):
    return jax.value_and_grad(checkpointed_loss)(params, x, y)


@pytest.mark.integration
def test_what_is_not_returned_updated_is_not_donated():
    found = traced(returning_gradients, inputs(), mode="program")
    kinds = [each.kind for each in planned(found, 1).lower_bound.remedies]
    assert "donation" not in kinds and "batch" in kinds


def accumulating(params, x, y):
    def body(totals, each):
        found = jax.value_and_grad(checkpointed_loss)(params, *each)
        return jax.tree.map(jnp.add, totals, found), None

    halves = jax.tree.map(lambda a: a.reshape(2, -1, WIDTH), (x, y))
    zeros = jnp.zeros(()), jax.tree.map(lambda p: jnp.zeros(p.shape, p.dtype), params)
    return jax.lax.scan(body, zeros, halves)[0]


def test_microbatches_are_worth_what_accumulation_by_hand_is():
    plan = lowest(loss, 0)
    (site,) = plan.sites
    assert site.kind == "scan" and site.parts[0].policy is None  # as in checkpointed_loss
    found = remedy(plan, "microbatches")
    by_hand = peak_of(accumulating, inputs(), mode="program")
    assert found.peak_nbytes == pytest.approx(by_hand, rel=1e-3)
    assert found.saved_nbytes > ROWS * WIDTH * 4
    assert f"x, y, {ROWS // 2} each" in found.change


def test_half_the_batch_of_a_step_is_worth_what_that_step_is():
    found = remedy(lowest(step), "batch")
    assert found.peak_nbytes == peak_of(step, step_inputs(ROWS // 2))


def casting_loss(params, x, y):
    return loss(params, x.astype(jnp.float32), y)


def checkpointed_casting_loss(params, x, y):
    return checkpointed_loss(params, x.astype(jnp.float32), y)


@pytest.mark.parametrize(
    ("which", "rows"),
    [("params", 256), pytest.param("x, y", ROWS, marks=pytest.mark.integration)],
)
def test_the_bigger_in_a_narrower_dtype_is_worth_what_that_program_is(which, rows):
    params, x, y = inputs(rows)
    half = [jax.ShapeDtypeStruct(a.shape, jnp.bfloat16) for a in (x, y)]
    args = (parameters(jnp.bfloat16), x, y) if which == "params" else (params, *half)
    found = remedy(planned(traced(casting_loss, inputs(rows), argnums=0), 1), "dtype")
    assert found.change == f"{which} in bfloat16 in place of float32"
    assert found.peak_nbytes == peak_of(checkpointed_casting_loss, args, argnums=0)


def narrowing(params, momentum, x, y):
    """Returns parameters in the dtype that they have; `step` would return them in float32."""
    value, made, momentum = step(params, momentum, x.astype(jnp.float32), y)
    return value, jax.tree.map(lambda p, q: q.astype(p.dtype), params, made), momentum


@pytest.mark.integration
@pytest.mark.parametrize(("fun", "is_shown"), [(step, False), (narrowing, True)])
def test_a_step_is_narrowed_where_it_returns_what_it_is_given(fun, is_shown):
    changes = [r.change for r in planned(traced(fun, step_inputs(256)), 1).lower_bound.remedies]
    assert ("params in bfloat16 in place of float32" in changes) is is_shown


def test_a_split_batch_is_worth_what_a_report_with_that_mesh_says():
    mesh = over(8)
    params, momentum, x, y = step_inputs()
    args = [split(each, mesh) for each in (params, momentum)]
    args += [split(each, mesh, "data") for each in (x, y)]
    found = remedy(lowest(step), "sharding")
    assert found.peak_nbytes == pytest.approx(peak_of(step, args), rel=1e-5)
    assert found.change == "x, y split over 8 devices (data parallel)"


def test_fsdp_is_worth_what_a_report_with_that_mesh_says():
    mesh = over(8)
    params, _, x, y = step_inputs()
    weights = {
        "layers": split(params["layers"], mesh, None, "data"),
        "head": split(params["head"], mesh, "data"),
    }
    args = [weights, weights, *(split(each, mesh, "data") for each in (x, y))]
    found = remedy(lowest(step), "sharding", 1)
    assert found.peak_nbytes == pytest.approx(peak_of(step, args), rel=1e-5)
    assert found.change == "params, momentum, x, y split over 8 devices (FSDP)"


def test_a_state_that_no_gradient_updates_is_split_without_a_word_about_training():
    def simulated(state):
        return jax.lax.scan(lambda s, _: (s + jnp.sin(s), s.sum()), state, None, 8)

    args = (jax.ShapeDtypeStruct((4096, 512), jnp.float32),)
    plan = jaxresid.plan(simulated, budget="1MiB", on="gpu:h100")(*args)
    changes = [r.change for r in plan.lower_bound.remedies if r.kind == "sharding"]
    assert changes == ["state split over 8 devices"]


@pytest.mark.integration
def test_what_a_mesh_splits_already_is_left():
    mesh = over(4)
    params, x, y = inputs()
    args = split(params, mesh), split(x, mesh, "data"), split(y, mesh, "data")
    plan = planned(traced(loss, args, argnums=0), 1)
    found = remedy(plan, "sharding")
    assert found.change == "params split over 4 devices (FSDP)"
    weights = {
        "layers": split(params["layers"], mesh, None, "data"),
        "head": split(params["head"], mesh, "data"),
    }
    by_hand = peak_of(checkpointed_loss, (weights, *args[1:]), argnums=0)
    assert found.peak_nbytes == by_hand
    # Where the types say how values are split, the program would be another one.
    explicit = over(4, explicit=True)
    args = split(params, explicit), split(x, explicit, "data"), split(y, explicit, "data")
    kinds = [each.kind for each in planned(traced(loss, args, argnums=0), 1).lower_bound.remedies]
    assert "sharding" not in kinds


@pytest.mark.integration
def test_only_what_is_split_is_named():
    params, x, y = inputs(ROWS + 4)  # no multiple of 8
    found = remedy(planned(traced(loss, (params, x, y), argnums=0), 1), "sharding")
    assert found.change == "params split over 8 devices (FSDP)"


def exact_loss(params, x, y):
    assert x.shape[0] == ROWS and params["head"].dtype == x.dtype
    return loss(params, x, y)


@pytest.mark.parametrize(
    ("peak", "fraction", "is_shown"),
    [(0.9, 0.9, True), (1.1, 0.0, True), (0.995, 0.9, False)],
    ids=["lower", "cheaper", "worse"],
)
def test_what_a_finding_proposes_is_shown_where_it_is_lower_or_costs_less(
    monkeypatch, peak, fraction, is_shown
):
    plan = lowest(loss)
    assert plan.recompute_flops > 0

    def proposals(subject, crashes):
        after = int(peak * plan.peak_nbytes)
        before = plan.written_nbytes
        figures = {"peak_before_nbytes": before, "peak_nbytes": after}
        finding = Finding(
            "a-finding", "", Source(None), measured={**figures, "recompute_fraction": fraction}
        )
        return (Proposal(finding, None),)

    monkeypatch.setattr(remedies, "rewrite_proposals", proposals)
    found = [
        each for each in lowest.__wrapped__(loss).lower_bound.remedies if each.kind == "rewrite"
    ]
    assert bool(found) == is_shown
    for each in found:
        assert each.saved_nbytes == plan.peak_nbytes - each.peak_nbytes
        assert each.change.startswith("the remedy (a-finding) in place of this plan, recompute ")
        word = "less" if peak < 1 else "more"
        assert re.search(rf"\d{{1,2}}\.\d% *: .*B {word}$", remedy_text(each))


@pytest.mark.integration
def test_what_cannot_be_traced_is_not_shown():
    kinds = {
        each.kind
        for each in planned(traced(exact_loss, inputs(), argnums=0), 1).lower_bound.remedies
    }
    assert kinds - {"offload"} == {"sharding"}


def test_the_cheapest_comes_first_and_each_lowers_the_peak():
    rank = (
        "donation",
        "rewrite",
        "microbatches",
        "batch",
        "offload",
        "host-state",
        "dtype",
        "sharding",
    )
    for fun in (loss, step):
        plan = lowest(fun)
        order = [rank.index(each.kind) for each in plan.lower_bound.remedies]
        assert order == sorted(order) and order
        for each in plan.lower_bound.remedies:
            assert each.saved_nbytes == plan.estimate_nbytes - each.peak_nbytes
            assert each.saved_nbytes > plan.estimate_nbytes / 100
    fitting = planned(traced_once(step), plan.estimate_nbytes * 100)
    assert {each.answer for each in fitting.lower_bound.remedies} == {"fits"}


@pytest.mark.parametrize(
    ("fun", "args", "argnums", "expected"),
    [
        (loss, inputs(), 0, ("x", "y")),
        (loss, inputs(), None, ("x", "y")),
        (lambda x: jnp.sum(x**2), (f32(8, 8),), None, None),
        (lambda p, key: jnp.sum(p), (f32(8), jax.ShapeDtypeStruct((2,), jnp.uint32)), None, None),
        (step, step_inputs(), None, ("x", "y")),
    ],
)
def test_what_the_batch_is(fun, args, argnums, expected):
    found = traced(fun, args, argnums=argnums)
    batch = batch_of(found)
    paths = batch and tuple(found.trace.arguments.paths[i] for i in batch.leaves)
    assert paths == expected


# --- how much is traced ------------------------------------------------------------------------


@pytest.fixture
def traces(monkeypatch):
    """The leaves of each call that was traced again for what lowers a floor."""
    found = []
    traced_with = Subject.traced_with

    def counting(self, leaves):
        found.append(leaves)
        return traced_with(self, leaves)

    monkeypatch.setattr(Subject, "traced_with", counting)
    return found


def test_where_nothing_is_recomputed_only_donation_is_looked_for(traces):
    for fun, args, kinds in ((loss, inputs(), []), (plain_step, step_inputs(), ["donation"])):
        plan = planned(traced(fun, args), 1 << 40)
        assert plan.recompute_flops == 0
        assert [each.kind for each in plan.lower_bound.remedies] == kinds and traces == []


@pytest.mark.integration
def test_at_most_three_traces_tell_what_lowers_a_floor(traces):
    for fun, args in ((loss, inputs()), (step, step_inputs())):
        traces.clear()
        planned(traced(fun, args), 1)
        assert 2 <= len(traces) <= 3  # half the batch, then bfloat16 until it can be traced


@pytest.mark.integration
def test_microbatches_and_another_dtype_are_traced_and_not_measured(traces, monkeypatch):
    measured = []

    def noting(self, choices, variant=CheckpointVariants.variant):
        measured.append(self)
        return variant(self, choices)

    monkeypatch.setattr(CheckpointVariants, "variant", noting)
    remedies = planned(traced(loss, inputs()), 1).lower_bound.remedies
    assert {"microbatches", "dtype"} <= {each.kind for each in remedies}
    assert len(set(measured)) == 1  # the variants of the plan alone


@pytest.mark.integration
def test_no_user_code_runs_for_donation_and_splits(traces, monkeypatch):
    def untraced(*_):
        raise RetraceError

    monkeypatch.setattr(Remedies, "_traced_with", untraced)
    split = []

    def noting(self, traced, program=ProgramHoles.program):
        if traced.arguments.mesh is not None:
            split.append(traced)
        return program(self, traced)

    monkeypatch.setattr(ProgramHoles, "program", noting)
    found = planned(traced(step, step_inputs()), 1).lower_bound.remedies
    kinds = [each.kind for each in found if each.kind not in ("offload", "host-state")]
    assert set(kinds) == {"donation", "sharding"}
    assert traces == []
    assert len(split) == kinds.count("sharding")


# --- what is proven ----------------------------------------------------------------------------


@pytest.mark.integration
def test_a_budget_below_arguments_and_outputs_is_proven_to_be_out_of_reach(monkeypatch):
    # With it an estimate alone would be too close.
    monkeypatch.setattr(Subject, "interval", lambda self, nbytes, _: Interval(1, 2 * nbytes))
    found = traced(loss, inputs(64))
    held = planned(found, 1).lower_bound.held_nbytes
    plan = planned(found, held - 1)
    assert plan.proven and plan.is_out_of_reach and plan.answer == "does not fit"
    above = planned(found, held)
    assert not above.is_out_of_reach


def two_loops(params, x, y):
    x, _ = jax.lax.scan(layer, x, params["layers"])
    x, _ = jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, params["layers"])
    return jnp.mean((x @ params["head"] - y) ** 2)


@pytest.mark.integration
def test_places_that_can_have_checkpoints_together_prove_nothing(monkeypatch):
    """One of the two of a step has no front, so that only the other is searched."""
    real = menus.graph

    def failing_once(body, *more):
        if [e for e in body.eqns if e.primitive.name == "sin"]:
            raise TypeError("no derivative")
        return real(body, *more)

    monkeypatch.setattr(menus, "graph", failing_once)
    found = traced(lambda *args: step(*args, of=two_loops), step_inputs())
    low, high = planned(found, 1).lowest_nbytes, found.peak.nbytes
    plan = planned(found, (low + high) // 2)
    assert plan.is_within and plan.recompute_flops and not plan.proven
    flat = [each for each in plan.choices if not each.segments]
    assert [each.selections > 0 for each in flat] == [True, False]


@pytest.mark.integration
def test_what_was_tried_is_named():
    found = traced_once(loss)
    low, high = lowest(loss).lowest_nbytes, found.peak.nbytes
    plan = planned(found, (low + 7 * high) // 8)
    scan = next(each for each in plan.choices if "layer" in each.place)
    assert plan.proven and plan.recompute_flops
    assert scan.selections == scan.known_selections > 1
    assert [each.segments > 0 for each in plan.choices].count(True) == 1
    assert scan.policies[0] == "no policy" and "dots_saveable" in scan.policies
    nothing_fits = planned(found, low - 1)
    # Not every size of segments was traced.
    assert not nothing_fits.proven and not nothing_fits.is_out_of_reach


@pytest.mark.integration
def test_more_budget_never_gives_more_recompute():
    found = sharing_variants(traced(loss, inputs()))
    low, high = lowest(loss).lowest_nbytes, found.peak.nbytes
    plans = [planned(found, low + (high - low) * i // 12) for i in range(13)]
    flops = [plan.recompute_flops for plan in plans]
    assert all(plan.is_within for plan in plans)
    assert flops == sorted(flops, reverse=True) and flops[0] > flops[-1] == 0


# --- Ctrl-C ------------------------------------------------------------------------------------


def interrupting(at):
    """A progress that is interrupted once it is told of something."""

    def progress(text):
        if text == at:
            raise KeyboardInterrupt

    return progress


@pytest.mark.integration
def test_ctrl_c_keeps_the_best_plan_found():
    found = traced(loss, inputs())
    low, high = planned(found, 1).lowest_nbytes, found.peak.nbytes
    budget = (low + high) // 2
    whole = planned(found, budget)
    results = []
    for after in (4, 8, whole.tried):
        progress = interrupting(f"tracing variant {after}")
        plan, _ = drafted(found, budget, progress=progress, keeps_interrupted=True)
        assert plan.interrupted and plan.tried == after - 1 and not plan.proven
        assert plan.lower_bound.parts == whole.lower_bound.parts and plan.lower_bound.remedies == ()
        results.append((not plan.is_within, plan.recompute_flops))
    assert results == sorted(results, reverse=True)
    assert results[-1] >= (False, whole.recompute_flops)
    assert not whole.interrupted
    # The plan itself may be there already.
    progress = interrupting("tracing what lowers the peak")
    last, _ = drafted(found, budget, progress=progress, keeps_interrupted=True)
    assert last.interrupted and last.lower_bound.remedies == () and last.sites == whole.sites


def test_ctrl_c_before_anything_was_traced_is_an_interrupt():
    found = traced(loss, inputs())
    with pytest.raises(KeyboardInterrupt):
        drafted(found, 1, progress=interrupting("tracing variant 1"), keeps_interrupted=True)
    # In Python it is one at any time.
    with pytest.raises(KeyboardInterrupt):
        drafted(found, 1, progress=interrupting("tracing variant 4"))


INTERRUPTED = """
    import os, signal
    import jax, jax.numpy as jnp

    traces = []

    def layer(x, w):
        return jnp.tanh(jnp.tanh(x @ w) @ w), None

    def step(ws, x):
        traces.append(None)
        if len(traces) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        value, gradient = jax.value_and_grad(
            lambda ws: jnp.sum(jax.lax.scan(layer, x, ws)[0] ** 2)
        )(ws)
        return value, ws - gradient

    def step_inputs():
        weights = jax.ShapeDtypeStruct((8, 64, 64), "float32")
        return weights, jax.ShapeDtypeStruct((512, 64), "float32")
"""


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(signal, "SIGINT"), reason="needs signals")
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_prints_the_plan_and_exits_with_130(tmp_path):
    (tmp_path / "interrupted.py").write_text(textwrap.dedent(INTERRUPTED))
    options = ["--budget", "1MiB", "--on", "tpu:v5e"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxresid", "plan", "interrupted.py:step", *options],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 130, done.stderr
    assert "Stopped by Ctrl-C after " in done.stdout and "no checkpoint can remove" in done.stdout
    assert done.stderr.endswith("jaxresid: interrupted; this is the best plan found so far\n")


@pytest.mark.integration
def test_a_change_that_crashes_is_a_warning_of_the_plan(monkeypatch):
    def gone(*_):
        raise AttributeError("module 'jax' has no attribute 'something'")

    monkeypatch.setattr(remedies, "like", gone)
    token = crashes.RAISES.set(False)
    try:
        made = planned(traced(loss, inputs(), argnums=0), 1)
    finally:
        crashes.RAISES.reset(token)
    (warning,) = [w for w in made.warnings if "AttributeError" in w]
    assert "microbatches, what bfloat16 saves and what more devices save could not be" in warning
    with pytest.raises(AttributeError):
        planned(traced(loss, inputs(), argnums=0), 1)
