"""Plans as MaxText's configuration: what is written, and that the policy which MaxText makes of it
keeps what is said. MaxText reads each tensor's setting and makes one policy of names of them."""

import ast
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxresid
from jaxresid.advice.plan.emit.maxtext import figures_with, maxtext_settings
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.results import PlannedPart
from tests.advice.test_writing import part, plan, site

TEXT = "x = scan(body)\n"
MOVED = (
    "save_and_offload_only_these_names(names_which_can_be_saved=['mlpwo', 'x'],"
    " names_which_can_be_offloaded=['decoder_layer_input'], offload_src='device',"
    " offload_dst='pinned_host')"
)


def settings(*parts, kind="checkpoint", more=()):
    return maxtext_settings(plan(site(kind, TEXT, "scan(", "body", *parts), *more))


@pytest.mark.parametrize(
    ("policy", "lines", "unsaid"),
    [
        (None, ["remat_policy: 'full'"], ()),
        (
            "save_only_these_names('query_proj', 'mlpwi_0')",
            [
                "remat_policy: 'custom'",
                "decoder_layer_input: 'device'",
                "query_proj: 'device'",
                "mlpwi_0: 'device'",
            ],
            (),
        ),
        (
            MOVED,
            ["remat_policy: 'custom'", "decoder_layer_input: 'offload'", "mlpwo: 'device'"],
            ("MaxText has no setting for 'x'",),
        ),
        (
            "save_only_these_names('moe_x_sorted', 'moe_routing_maps')",
            [
                "remat_policy: 'custom'",
                "decoder_layer_input: 'device'",
                "moe_x_sorted: 'device'",
                "moe_routing_maps: 'device'",
            ],
            (),
        ),
        (
            "save_only_these_names('x')",
            ["remat_policy: 'full'"],
            ("MaxText has no setting for 'x'",),
        ),
        (
            "dots_saveable",
            ["remat_policy: 'minimal_with_context'"],
            (
                "MaxText saves tensors by name, not dots_saveable: the nearest is"
                " minimal_with_context",
            ),
        ),
    ],
)
def test_the_lines_of_a_policy(policy, lines, unsaid):
    made = settings(part(policy))
    assert (made.text.splitlines(), made.unsaid) == (lines, unsaid)


def test_no_checkpoint_has_a_nearest_setting():
    made = settings(part(checkpointed=False))
    assert made.text == "remat_policy: 'minimal_with_context'\n"
    assert made.unsaid[0].startswith("MaxText saves tensors by name, not no checkpoint")


def test_layers_that_differ_are_treated_alike():
    made = settings(part("save_only_these_names('context')", calls=2), part(calls=2))
    assert made.text == "remat_policy: 'full'\n"
    assert made.unsaid == ("MaxText treats all layers alike, between which the plan differs",)


def test_segments_are_not_said():
    cut = site("segments", TEXT, "scan(", "body", PlannedPart(1, True, None, (), (2,)))
    assert settings(part(), more=(cut,)).unsaid == (
        "MaxText has no setting for this: the loop at model.py:1 (body) is cut into segments of 2"
        " iterations",
    )
    with pytest.raises(InputsError, match="the plan has no checkpoint of layers"):
        maxtext_settings(plan(cut))


def layer(x, w):
    x = checkpoint_name(x, "decoder_layer_input")
    h = checkpoint_name(jnp.sin(x @ w), "mlpwi")
    return x + checkpoint_name(jnp.tanh(h * h) @ w, "mlpwo"), None


def loss(x, ws, policy=None):
    return jax.lax.scan(jax.checkpoint(layer, policy=policy), x, ws)[0].sum()


@pytest.mark.parametrize("policy", ["save_only_these_names('mlpwi')", MOVED, None])
def test_the_figures_are_those_of_maxtexts_policy(policy):
    args = [jax.ShapeDtypeStruct(s, "float32") for s in ((16, 64), (3, 64, 64))]
    traced = subject(Question(loss).of(args, {}))
    (place,) = (p for p in traced.variants().places() if p.kind == "checkpoint")
    here = SimpleNamespace(
        kind=place.kind,
        function=place.function,
        location=place.location,
        parts=(part(policy),),
    )
    made = maxtext_settings(SimpleNamespace(sites=(here,)))
    found = figures_with(made.policy, SimpleNamespace(sites=(here,)), traced)
    report = jaxresid.inspect(lambda *a: loss(*a, as_maxtext(made.text)), argnums=(0, 1))(*args)
    assert found.kept_nbytes == report.totals.computed_nbytes
    assert found.host_nbytes == report.totals.host_nbytes
    assert found.recompute_flops == report.cost.recompute.flops


def as_maxtext(text):
    """The policy that MaxText makes of its configuration."""
    given = {
        key: ast.literal_eval(value)
        for key, value in (line.split(": ") for line in text.splitlines())
    }
    if given.pop("remat_policy") == "full":
        return None
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[name for name, kept in given.items() if kept == "device"],
        names_which_can_be_offloaded=[name for name, kept in given.items() if kept == "offload"],
        offload_src="device",
        offload_dst="pinned_host",
    )
