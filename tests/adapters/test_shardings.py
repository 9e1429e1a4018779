"""Parameters that carry their partitioning, under --mesh."""

import json
import os
import subprocess
import sys

import jax
import pytest
from jax.sharding import PartitionSpec

from jaxresid import jax_compat
from jaxresid.adapters import ModelRequest
from jaxresid.adapters.losses import LOSSES
from jaxresid.adapters.registry import adapted_by
from jaxresid.targets.expressions import expression_of
from jaxresid.targets.inputs import Inputs
from tests.where import ROOT

optax = pytest.importorskip("optax")
pytest.importorskip("flax.nnx")

UP, DOWN, WHOLE = PartitionSpec(None, "model"), PartitionSpec("model", None), PartitionSpec()
AXES = {"data": 1, "model": 1}  # of which the specs do not depend on the sizes


def specs_of(model, axes=AXES):
    """The shape and the spec of each parameter and of each array of its optimizer's state."""
    from tests.adapters import flax_models

    framework, _, text = model.partition(":")
    x = jax.ShapeDtypeStruct((4, 8), "float32")
    expression = expression_of(text, flax_models, "flax_models")
    mesh = None if axes is None else jax_compat.new_mesh(axes, explicit=False)
    with jax_compat.in_mesh(mesh):
        request = ModelRequest(
            *(framework, model, expression, Inputs((x,), {}), LOSSES["mean"], optax.adam(1e-3)),
            mesh=mesh,
        )
        params, opt_state, *_ = adapted_by(request).inputs.args
    return [
        {(leaf.shape, getattr(leaf.sharding, "spec", None)) for leaf in jax.tree.leaves(each)}
        for each in (params, opt_state)
    ]


@pytest.mark.parametrize("model", ["linen:SplitLinen()", "nnx:SplitNNX()"])
def test_parameters_and_their_moments_are_split(model):
    params, opt_state = specs_of(model)
    assert params == {((8, 16), UP), ((16, 8), DOWN), ((16,), WHOLE), ((8,), WHOLE)}
    assert opt_state == params | {((), None)}


def test_without_a_mesh_all_is_whole():
    params, _ = specs_of("linen:SplitLinen()", None)
    assert {spec for _, spec in params} == {None}


def test_a_logical_name_that_is_no_axis_leaves_the_dimension_whole():
    params, _ = specs_of("linen:Logical()")
    assert params == {((8, 16), UP), ((16,), WHOLE)}


def test_a_mesh_says_another_platform_and_is_of_the_same_devices():
    mesh = jax_compat.new_mesh({"data": 1, "model": 1}, explicit=False)
    told = jax_compat.mesh_that_says(mesh, "tpu")
    assert told.devices[0, 0].platform == told.devices.flat[0].platform == "tpu"
    assert told.devices[0, 0].id == mesh.devices[0, 0].id
    assert [*told.devices.flat] == [*mesh.devices.flat] and len(told.devices.flat) == 1
    assert told.devices[0].shape == (1,)
    assert mesh.devices[0, 0].platform == "cpu"
    assert told.shape == mesh.shape and told.axis_types == mesh.axis_types
    x = jax.ShapeDtypeStruct((4, 2), "float32", sharding=jax.NamedSharding(told, UP))
    lowered = jax.jit(lambda x: x + 1).trace(x).lower()
    assert lowered.compile()(jax.numpy.ones((4, 2))).sum() == 16


@pytest.mark.integration
def test_a_report_of_a_split_model():
    model = "linen:tests/adapters/flax_models.py:SplitLinen()"
    words = ("--arg", "f32[4,8]@data", "--mesh", "data=2,model=4", "--optimizer", "adam(1e-3)")
    done = subprocess.run(
        [sys.executable, "-m", "jaxresid", "report", model, *words, "-f", "json"],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    roles = json.loads(done.stdout)["peak"]["breakdown"]
    # Two kernels over four devices, and at most two whole biases; no whole copies beside them.
    assert roles["parameters"] <= 4 * (2 * 8 * 16 // 4 + 16 + 8)
    assert roles["optimizer-state"] == 2 * roles["parameters"] + 4
    assert "arguments" not in roles
