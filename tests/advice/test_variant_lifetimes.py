"""The lifetimes of values under each policy and with a plan, whose peaks are those of the rows."""

import json

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from fixtures.inspect import gpt
from jaxresid.inspector.report import subject
from tests.inspector.memory.test_lifetimes import add_up, step, step_arguments
from tests.serialization.test_documents import saved_and_loaded
from tests.small import f32


def layer(x, w):
    return jnp.sin(jnp.tanh(x @ w))


def loss(ws, x):
    for w in ws:
        x = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)(x, w)
    return jnp.sum(x)


ARGUMENTS = [f32(128, 128)] * 6, f32(1024, 128)


def peaks(result):
    for found in result.lifetimes:
        add_up(found)
    return {found.name: found.nbytes for found in result.lifetimes}


@pytest.mark.parametrize("on", ["gpu:h100", "tpu:v5e"])
def test_a_comparison_has_those_of_each_row(on):
    result = jaxresid.compare(loss, on=on, lifetimes=True)(*ARGUMENTS)
    rows = {row.policy: row.peak_nbytes for row in result.rows if row.error is None}
    rows = {"": rows.pop("as-written"), **rows}
    assert peaks(result) == rows
    assert list(peaks(result)) == list(rows)
    for found in result.lifetimes:
        row = next(r for r in result.rows if r.policy == (found.name or "as-written"))
        assert found.interval == row.interval


def test_a_row_with_an_error_has_none():
    def fails(prim, *_, **__):
        raise ValueError(prim)

    result = jaxresid.compare(loss, policies={"fails": fails}, lifetimes=True)(*ARGUMENTS)
    assert "fails" not in peaks(result)


@pytest.mark.integration
def test_a_plan_has_those_of_the_code_and_of_the_plan(tmp_path):
    free = jaxresid.plan(loss, budget="1TiB", lifetimes=True)(*ARGUMENTS)
    budget = (free.lowest_nbytes + free.peak_nbytes) // 2
    result = jaxresid.plan(loss, budget=budget, lifetimes=True)(*ARGUMENTS)
    assert peaks(result) == {"": result.written_nbytes, "plan": result.estimate_nbytes}
    saved_and_loaded(result, tmp_path)


def test_a_plan_that_changes_nothing_has_those_of_the_code():
    def plain(ws, x):
        for w in ws:
            x = layer(x, w)
        return jnp.sum(x)

    result = jaxresid.plan(plain, budget="1TiB", lifetimes=True)(*ARGUMENTS)
    assert peaks(result) == {"": result.peak_nbytes}


def test_values_have_the_frames_of_what_makes_them():
    report = jaxresid.inspect(loss, lifetimes=True)(*ARGUMENTS)
    kept = [v for v in report.lifetimes[0].values if v.reason == "residual"]
    assert kept
    for v in kept:
        assert [frame.function for frame in v.stack] == ["loss", "layer"]
        assert v.stack[-1] == v.live.location


def test_places_stand_once_in_json():
    report = jaxresid.inspect(loss, lifetimes=True)(*ARGUMENTS)
    (found, *_) = json.loads(report.to_json())["lifetimes"]
    places = [tuple(place.values()) for place in found["locations"]]
    assert len(places) == len(set(places)) > 1
    (first, *_) = [v for v in found["values"] if v["reason"] == "residual"]
    assert found["locations"][first["location"]]["function"] == "layer"


@pytest.mark.parametrize("number", [-1, 99, True, "0"])
def test_a_number_of_no_place_is_refused(number, tmp_path):
    data = json.loads(jaxresid.inspect(loss, lifetimes=True)(*ARGUMENTS).to_json())
    data["lifetimes"][0]["points"][0]["location"] = number
    file = tmp_path / "report.json"
    file.write_text(json.dumps(data))
    with pytest.raises(jaxresid.JaxresidError, match="null or the number of one of locations"):
        jaxresid.load(file)


@pytest.mark.integration
def test_they_are_saved_and_loaded(tmp_path):
    saved_and_loaded(jaxresid.inspect(loss, lifetimes=True)(*ARGUMENTS), tmp_path)
    saved_and_loaded(jaxresid.inspect(step, lifetimes=True)(*step_arguments()), tmp_path)
    saved_and_loaded(jaxresid.compare(loss, lifetimes=True)(*ARGUMENTS), tmp_path)


@pytest.mark.integration
def test_layers_left_out_are_there():
    """Variants of many layers are measured by a few, and have the lifetimes of all."""
    result = jaxresid.compare(gpt.loss, lifetimes=True)(*gpt.loss_inputs())
    rows = {row.policy: row.peak_nbytes for row in result.rows if row.error is None}
    rows = {"": rows.pop("as-written"), **rows}
    assert peaks(result) == rows
    modules = {v.live.path for v in result.lifetimes[0].values if v.live.path}
    assert all(any(f"[{i}]" in path for path in modules) for i in range(12))


def test_a_subject_has_those_of_its_program():
    from jaxresid.inspector.call.question import Question

    found = subject(Question(loss, ARGUMENTS))
    assert found.lifetimes() == jaxresid.inspect(loss, lifetimes=True)(*ARGUMENTS).lifetimes[0]
