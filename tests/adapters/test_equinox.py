"""`equinox:` targets, held against what a person writes without them."""

import inspect

import jax
import pytest

from jaxresid.adapters import ModelRequest
from jaxresid.adapters.losses import loss_of
from jaxresid.adapters.registry import adapted_by
from jaxresid.targets.expressions import expression_of
from jaxresid.targets.inputs import Inputs
from jaxresid.targets.targets import load_module
from tests.where import ROOT

pytest.importorskip("equinox")
pytest.importorskip("optax")

NET = "equinox:equinox_models.py:Net(8)"
BATCH = ("--arg", "f32[4,8]")


def test_the_loss_is_what_one_writes_by_hand(report):
    found = report(NET, *BATCH)
    written = report("equinox_models.py:loss", "--argnums", "0")
    assert found["totals"] == written["totals"]
    assert found["cost"] == written["cost"]
    # Weights and biases of two layers; not the whole numbers of the table.
    assert len(found["target"]["differentiated"]) == 4


def test_a_loss_of_the_users_calls_the_module_itself(report):
    own = report(NET, *BATCH, "--loss", "equinox_models.py:own_loss")
    assert own["totals"] == report(NET, *BATCH)["totals"]


def test_each_example_has_its_key_and_flags_are_shared(report):
    training = (*BATCH, "--kwarg", "inference=False", "--kwarg", "key=key[4]")
    kept = [report(NET, *words)["totals"]["computed_nbytes"] for words in (BATCH, training)]
    assert kept[0] < kept[1]


@pytest.mark.parametrize("loss", [(), ("--loss", "equinox_models.py:stateful_loss")])
def test_running_means_are_passed_and_returned(report, loss):
    written = report("equinox_models.py:normed_loss", "--argnums", "0")
    found = report("equinox:equinox_models.py:Normed(8)", *BATCH, *loss)
    assert found["totals"] == written["totals"]
    assert found["cost"] == written["cost"]
    assert len(found["target"]["differentiated"]) == 6


def test_a_step_donates_running_means(report):
    found = report("equinox:equinox_models.py:Normed(8)", *BATCH, "--optimizer", "adam")
    roles = found["peak"]["breakdown"]
    assert roles["optimizer-state"] == 2 * roles["parameters"] + 4
    assert not found["findings"]


@pytest.mark.parametrize("loss", ["mean", "equinox_models.py:stateful_loss"])
def test_a_step_returns_new_running_means(loss):
    optax = pytest.importorskip("optax")
    model = expression_of("Normed(8)", load_module("equinox_models.py"), "equinox_models.py")
    inputs = Inputs((jax.ShapeDtypeStruct((4, 8), "float32"),), {})
    request = ModelRequest("equinox", "Normed", model, inputs, loss_of(loss), optax.sgd(0.1))
    step = adapted_by(request)
    traced = step.fun.trace(*step.inputs.args).jaxpr
    assert not set(map(id, traced.jaxpr.outvars)) & set(map(id, traced.jaxpr.invars))
    assert "x" in inspect.signature(step.fun).parameters


@pytest.mark.integration
def test_the_tutorials_step_without_its_step(report, monkeypatch):
    monkeypatch.chdir(ROOT)
    file = "fixtures/tutorials/equinox_step.py"
    batch = ("--arg", "f32[4096,256]") * 2
    words = ("--loss", "squared-error", "--optimizer", "adam")
    found = report(f"equinox:{file}:Net", *batch, *words)
    written = report(f"{file}:train_step")
    assert found["totals"]["computed_nbytes"] == written["totals"]["computed_nbytes"]
    for phase in ("forward_flops", "backward_flops"):
        assert found["cost"][phase] == written["cost"][phase]
    roles = [each["peak"]["breakdown"]["optimizer-state"] for each in (found, written)]
    assert roles[0] == roles[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((NET, "--arg", "f32[4,9]"), "fails to trace: TypeError"),
        (("equinox:equinox_models.py:own_loss", *BATCH), "own_loss fails: TypeError"),
        (("equinox:equinox_models.py:Unnamed(8)", *BATCH), "its call no parameter state"),
        (
            (
                *("equinox:equinox_models.py:Normed(8)", *BATCH, "--has-aux"),
                *("--loss", "equinox_models.py:stateful_loss"),
            ),
            "(loss, state), and no --has-aux",
        ),
        (("equinox:nn.MLPP(2)", *BATCH), "did you mean MLP?"),
        (("equinox:equinox_models.py:jax.Array", *BATCH), "is no equinox.Module"),
    ],
)
def test_what_is_wrong_is_one_line(call, words, message):
    code, _, err = call("report", *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
