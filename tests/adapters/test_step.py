"""What is asked of every adapter: which arguments a step has, and how its loss and optimizer are
found."""

import inspect
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxresid.adapters import ModelRequest, adapted
from jaxresid.adapters.losses import LOSSES
from jaxresid.adapters.optimizers import optimizer_of
from jaxresid.targets.expressions import expression_of
from jaxresid.targets.inputs import Inputs

optax = pytest.importorskip("optax")
X = jax.ShapeDtypeStruct((4, 8), "float32")
PARAMS = {"w": jax.ShapeDtypeStruct((8, 3), "float32")}
STATE = {"mean": jax.ShapeDtypeStruct((3,), "float32")}


def step_of(loss, *inputs, optimizer=None, state=STATE, call=lambda x, mask: None):
    module = types.ModuleType("models")
    module.model = call
    request = ModelRequest(
        "chain", "chain:models:model", expression_of("model", module, "models"),
        Inputs(inputs, {}), LOSSES[loss], optimizer,
    )  # fmt: skip

    def objective(params, state, rng, *args):
        return request.loss(lambda x, *more: jnp.sin(x @ params["w"]), *args), state

    return adapted(request, objective, PARAMS, state, call=call, needs_rng=True)


def donated(made):
    infos = made.fun.lower(*made.inputs.args).args_info[0]
    return [all(leaf.donated for leaf in jax.tree.leaves(each)) for each in infos]


def test_a_step_donates_all_that_it_returns_updated():
    adam = optax.adam(1e-3)
    assert donated(step_of("mean", X, optimizer=adam)) == [True] * 3 + [False] * 2
    assert donated(step_of("mean", X, optimizer=adam, state=None)) == [True] * 2 + [False] * 2


def test_arguments_have_the_names_of_the_call_and_the_target_its_own():
    labels = jax.ShapeDtypeStruct((4,), "int32")
    for loss, inputs, names in (
        ("mean", (X, X), ["x", "mask"]),
        ("mean", (X, X, X), ["x", "mask", "input2"]),
        ("cross-entropy", (X, labels), ["x", "labels"]),
        ("squared-error", (X, X, X), ["x", "mask", "target"]),
    ):
        made = step_of(loss, *inputs)
        found = [*inspect.signature(made.fun).parameters]
        assert found == ["params", "state", "rng", *names, "kwargs"]
    taken = step_of("mean", X, X, call=lambda params, rng: None)
    found = [*inspect.signature(taken.fun).parameters]
    assert found[3:5] == ["params_0", "rng_1"]


def test_an_optimizer_without_a_rate_has_a_thousandth():
    for text in ("sgd", "sgd()", "sgd(1e-3)", "sgd(learning_rate=1e-3)"):
        made = optimizer_of(text)
        updates, _ = made.update(jnp.ones(2), made.init(jnp.ones(2)))
        assert updates.tolist() == pytest.approx([-1e-3, -1e-3])


class Net:
    def __init__(self, width, rngs, *, key=None): ...


def net(width, rngs): ...


@pytest.mark.parametrize(
    ("text", "name", "takes"),
    [
        ("Net", "width", True),
        ("Net(8)", "width", False),
        ("Net(8)", "rngs", True),
        ("Net(8, 3)", "rngs", False),
        ("Net(8, rngs=3)", "rngs", False),
        ("Net(8, 3)", "key", True),
        ("net(8)", "width", False),
        ("net(8)", "rngs", True),
        ("net(8, 3)", "rngs", False),
        ("net(8)", "key", False),
    ],
)
def test_what_a_call_leaves_out(text, name, takes):
    module = types.ModuleType("models")
    module.Net, module.net = Net, net
    assert expression_of(text, module, "models").takes(name) is takes


def test_labels_are_whole_numbers_for_each_row_of_logits(call):
    pytest.importorskip("flax")
    model = ("linen:flax_models.py:Linen(8)", "--arg", "f32[4,8]", "--loss", "cross-entropy")
    for labels in ("i32[4,8]", "i32[8]", "f32[4]", "i32[]"):
        code, _, err = call("report", *model, "--arg", labels)
        assert code == 2
        assert "give the labels as the last --arg, i32[4]" in err


def test_the_lines_of_a_loss_are_a_librarys(report):
    pytest.importorskip("flax")
    model = "linen:Sequential([Dense(3), tanh])"
    found = report(model, "--arg", "f32[4,8]", "--arg", "i32[4]", "--loss", "cross-entropy")
    files = {
        Path(each["origin"]["location"]["file"]).name
        for each in found["residuals"]
        if each["origin"].get("location")
    }
    # Were they the user's, what Flax computes would be at the line that calls the model.
    assert {"<--loss cross-entropy>", "combinators.py"} <= files


def test_files_of_losses_and_optimizers_are_those_beside_the_configuration(
    report, tmp_path, monkeypatch
):
    pytest.importorskip("flax")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.jaxresid.targets.net]\ntarget = "linen:Dense(3)"\nargs = ["f32[4,8]"]\n'
        'loss = "own.py:loss"\noptimizer = "own.py:optimizer"\n'
    )
    (tmp_path / "own.py").write_text(
        "import optax\ndef loss(model, x): return (model(x) ** 2).sum()\n"
        "def optimizer(): return optax.sgd(0.1, momentum=0.9)\n"
    )
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    roles = report("net")["peak"]["breakdown"]
    assert roles["optimizer-state"] == roles["parameters"]
