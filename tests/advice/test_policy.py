"""A plan as a policy of JAX's, held against the plan's own figures and against JAX."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxresid
from jaxresid import Expression, JaxresidError, Location, PlannedPart, PlannedSite, PlannedValue
from jaxresid.results.plan.joint import Configuration, Selection

policies = jax.checkpoint_policies
LAYERS = 3
FLAT = jax.ShapeDtypeStruct((64, 64), "float32")
STACKED = jax.ShapeDtypeStruct((LAYERS, 64, 64), "float32")


def layer(x, w):
    h = checkpoint_name(x @ w, "h")
    a = checkpoint_name(jnp.sin(h), "a")
    return x + jnp.tanh(a * a)


def loss(x, ws, body=layer):
    return jax.lax.scan(lambda x, w: (body(x, w), None), x, ws)[0].sum()


def checkpointed(x, ws, policy):
    return loss(x, ws, jax.checkpoint(layer, policy=policy))


def kept(policy):
    report = jaxresid.inspect(lambda x, ws: checkpointed(x, ws, policy), argnums=(0, 1))(
        FLAT, STACKED
    )
    return report.totals.computed_nbytes, report.totals.host_nbytes


@pytest.fixture(scope="module")
def plan():
    """The plan that has the least recomputation of those that keep less than the code as it is."""
    written = jaxresid.inspect(loss, on="gpu:h100")(FLAT, STACKED).peak.nbytes
    return jaxresid.plan(loss, on="gpu:h100", budget=written - 1)(FLAT, STACKED)


def with_sites(plan, *sites):
    return replace(plan, sites=sites)


def site(function="layer", line=21, *parts, kind="scan", **more):
    where = Location("model/net.py", line, 0, "loss", "")
    parts = parts or (PlannedPart(1, True, None),)
    calls = sum(part.calls for part in parts)
    return PlannedSite(kind, function, where, calls, calls * LAYERS, parts, True, **more)


@pytest.mark.integration
def test_the_residuals_are_those_that_the_plan_promises(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    assert plan.sites[0].parts[0].checkpointed
    assert kept(jaxresid.policy(tmp_path / "plan.json")) == (plan.kept_nbytes, plan.host_nbytes)
    assert jaxresid.policy(plan) is jaxresid.policy(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        (None, None),
        ("dots_saveable", policies.dots_saveable),
        ("save_only_these_names('a')", policies.save_only_these_names("a")),
        ("save_only_these_names('h', 'a')", policies.save_only_these_names("h", "a")),
        (
            "save_from_both_policies(dots_saveable, save_only_these_names('a'))",
            policies.save_from_both_policies(
                policies.dots_saveable, policies.save_only_these_names("a")
            ),
        ),
        (
            "save_and_offload_only_these_names(names_which_can_be_saved=['a'],"
            " names_which_can_be_offloaded=['h'], offload_src='device',"
            " offload_dst='pinned_host')",
            policies.save_and_offload_only_these_names(
                names_which_can_be_saved=["a"],
                names_which_can_be_offloaded=["h"],
                offload_src="device",
                offload_dst="pinned_host",
            ),
        ),
        (
            "offload_dot_with_no_batch_dims('device', 'pinned_host')",
            policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
        ),
    ],
)
def test_each_policy_keeps_what_jaxs_own_keeps(plan, text, policy):
    one = with_sites(plan, site("layer", 21, PlannedPart(1, True, text)))
    made = jaxresid.policy(one)
    assert made is jaxresid.policy(one)  # or JAX would trace each layer anew
    assert kept(made) == kept(policy)
    assert kept(made) != kept(policies.everything_saveable)


def test_no_checkpoint_keeps_what_the_code_without_one_keeps(plan):
    made = jaxresid.policy(with_sites(plan, site("layer", 21, PlannedPart(1, False))))
    plain = jaxresid.inspect(loss)(FLAT, STACKED)
    assert kept(made) == (plain.totals.computed_nbytes, 0)


@pytest.mark.parametrize(
    "at",
    ["Block", "Block.__call__", "net.py:30", "model/net.py:30", "model/net.py:30 (Block.__call__)"],
)
def test_a_place_by_its_name_and_by_its_line(plan, at):
    two = with_sites(
        plan, site("layer", 21), site("Block.__call__", 30, PlannedPart(1, True, "dots_saveable"))
    )
    assert jaxresid.policy(two, at=at) is policies.dots_saveable
    assert jaxresid.policy(two, at="layer") is policies.nothing_saveable


def test_a_place_by_the_line_of_its_definition(plan):
    defined = Location("other.py", 7, 0, "layer", "")
    two = with_sites(plan, site(defined=defined), site("f", 30, PlannedPart(1, False)))
    assert jaxresid.policy(two, at="other.py:7") is policies.nothing_saveable


def test_places_alike_need_no_name(plan):
    assert jaxresid.policy(with_sites(plan, site(), site("f", 30))) is policies.nothing_saveable


def test_some_of_the_calls(plan):
    parts = PlannedPart(2, True, "dots_saveable"), PlannedPart(1, False)
    some = with_sites(plan, site("layer", 21, *parts))
    chosen = [jaxresid.policy(some, call=i) for i in range(3)]
    assert chosen == [policies.dots_saveable] * 2 + [policies.everything_saveable]


SEGMENTS = site("loss", 21, PlannedPart(1, True, None, (), (2, 3)), kind="segments")
SOME = site("layer", 21, PlannedPart(2, True, "dots_saveable"), PlannedPart(1, False))
DIFFERENT = site("f", 30, PlannedPart(1, True, "dots_saveable"))


@pytest.mark.parametrize(
    ("sites", "given", "message"),
    [
        ((), {}, r"the plan of loss has no checkpoints, and so no policy"),
        (
            (site(), DIFFERENT),
            {},
            r"the plan differs between 'model/net.py:21 \(layer\)', 'model/net.py:30 \(f\)'; give"
            r" at= one of them",
        ),
        (
            (site(), DIFFERENT),
            {"at": "net.py:22"},
            r"no place 'net.py:22'; it has 'model/net.py:21 \(layer\)', ",
        ),
        ((site(), DIFFERENT), {"at": "et.py:21"}, r"no place 'et.py:21'"),
        ((site(), DIFFERENT), {"at": "other/net.py:21"}, r"no place 'other/net.py:21'"),
        (
            (site(), replace(DIFFERENT, function="layer")),
            {"at": "layer"},
            r"'layer' is several places, between which the plan differs: 'model/net.py:21 \(layer",
        ),
        (
            (SOME,),
            {},
            r"treats the 3 calls of model/net.py:21 \(layer\) differently: 2 from 0: dots_saveable,"
            r" 1 from 2: no checkpoint; give call=, from 0",
        ),
        ((SOME,), {"call": 3}, r"called 3 times in the plan: call= is from 0 to 2"),
        ((SOME,), {"call": -1}, r"call= is from 0 to 2"),
        (
            (SEGMENTS,),
            {},
            r"no policy can say that the loop at model/net.py:21 \(loss\) is cut into segments of 2"
            r" of 3 iterations: plan --diff writes it",
        ),
    ],
)
def test_what_no_policy_can_say_is_one_line(plan, sites, given, message):
    with pytest.raises(JaxresidError, match=message) as caught:
        jaxresid.policy(with_sites(plan, *sites), **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "my_policy",
        "lambda",
        "__import__('os').system('true')",
        "save_only_these_names(__import__('os'))",
        "save_only_these_names(*['a'])",
        "save_only_these_names(**{'a': 'b'})",
        "dots_saveable()",
        "save_only_these_names('a'",
        "save_only_these_names(0)",
        "(" * 2000,
        "save_and_offload_only_these_names(names_which_can_be_saved=[['a']])",
    ],
)
def test_nothing_of_a_plan_is_run(plan, text):
    with pytest.raises(JaxresidError, match=r"is none of jax.checkpoint_policies; use it as"):
        jaxresid.policy(with_sites(plan, site("layer", 21, PlannedPart(1, True, text))))


def test_a_policy_that_this_jax_does_not_make(plan):
    text = "offload_dot_with_no_batch_dims()"
    with pytest.raises(JaxresidError, match=r"jax.checkpoint_policies.offload_dot_with_no_batch"):
        jaxresid.policy(with_sites(plan, site("layer", 21, PlannedPart(1, True, text))))


def test_another_result_is_no_plan(tmp_path):
    file = tmp_path / "report.json"
    jaxresid.inspect(loss)(FLAT, STACKED).save(file)
    with pytest.raises(JaxresidError, match="holds a Report, not a Plan"):
        jaxresid.policy(file)


def test_what_a_policy_leaves_to_do_is_a_warning(plan, tmp_path):
    file = tmp_path / "net.py"
    value = PlannedValue("q", "save", 8, Expression(str(file), 3, 4, 3, 9, "layer", "x @ w"))
    part = PlannedPart(1, True, "save_only_these_names('q')", (value,))
    unnamed = with_sites(plan, site("layer", 21, part))
    file.write_text("h = x @ w\n")
    with pytest.warns(UserWarning, match=r"by checkpoint_name; name .*net.py:3 x @ w as 'q'"):
        jaxresid.policy(unnamed)
    cut = replace(unnamed, sites=(*unnamed.sites, SEGMENTS))
    file.write_text("h = checkpoint_name(x @ w, 'q')\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxresid.policy(unnamed)
    with pytest.warns(UserWarning, match=r"the plan also needs that the loop at .* is cut into"):
        jaxresid.policy(cut)
    batches = replace(unnamed, selection=Selection(Configuration(microbatches=4)))
    with pytest.warns(UserWarning, match="the plan also needs 4 microbatches"):
        jaxresid.policy(batches)
