"""`keras:` targets, held against the step of Keras that a person jits without them."""

import os
import re
import shutil
from pathlib import Path

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
pytest.importorskip("keras")

FILE = "keras_models.py"
MODEL = f"keras:{FILE}:build"
X, LABELS, TARGET = ("--arg", "f32[4,8]"), ("--arg", "i32[4]"), ("--arg", "f32[4,3]")


@pytest.fixture
def compiled(report):
    return report(MODEL, *X, *LABELS)


def test_the_step_is_that_of_fit(report, compiled):
    written = report(f"{FILE}:train_step")
    for part in ("totals", "cost"):
        assert compiled[part] == written[part]
    assert compiled["peak"]["nbytes"] == written["peak"]["nbytes"]
    assert compiled["target"]["mode"] == "program"
    assert len(compiled["target"]["differentiated"]) == 6
    assert compiled["target"]["differentiated"][0].startswith("params['")


def test_its_state_is_donated(compiled):
    roles = compiled["peak"]["breakdown"]
    # Adam's two moments, a count and a rate.
    assert roles["optimizer-state"] == 2 * roles["parameters"] + 8
    assert not compiled["findings"]


def test_samples_have_weights(report, compiled):
    weighted = report(MODEL, *X, *LABELS, "--arg", "f32[4]")
    assert weighted["cost"]["forward_flops"] > compiled["cost"]["forward_flops"]
    named = ("--kwarg", "sample_weight=f32[4]")
    assert report(MODEL, *X, *LABELS, *named)["totals"] == weighted["totals"]


def test_a_model_that_a_module_holds(report, compiled):
    assert report(f"keras:{FILE}:model", *X, *LABELS)["totals"] == compiled["totals"]


def test_a_loss_of_the_users_takes_precedence(report):
    own = report(MODEL, *X, *TARGET, "--loss", f"{FILE}:own_loss")
    assert own["target"]["mode"] == "loss"
    squared = report(MODEL, *X, *TARGET, "--loss", "squared-error")
    assert own["cost"]["forward_flops"] > 2 * 4 * (8 * 16 + 16 * 3)
    # Dropout's bits: a named loss trains.
    assert "bool" in {each["dtype"] for each in squared["residuals"]}


def test_a_model_that_is_not_compiled(report):
    pytest.importorskip("optax")
    words = (f"keras:{FILE}:Net(16)", *X)
    assert report(*words)["target"]["mode"] == "loss"
    step = report(*words, "--optimizer", "adam")
    assert step["target"]["mode"] == "program"
    roles = step["peak"]["breakdown"]
    assert roles["optimizer-state"] == 2 * roles["parameters"] + 4


def test_a_class_of_keras(report):
    found = report("keras:Sequential([layers.Dense(3)])", *X)
    assert found["cost"]["forward_flops"] >= 2 * 4 * 8 * 3


def test_a_layer_with_constants_of_its_own(report):
    found = report(f"keras:{FILE}:normalized", *X)
    assert found["cost"]["forward_flops"] >= 2 * 4 * 8 * 3


_KEPT = r"traced with these settings: kept ([\d.]+) MiB, peak about ([\d.]+) MiB.*, as planned"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "budget"),
    [("functional", "13MiB"), ("sequential", "17MiB"), ("models_in_a_model", "10MiB")],
)
def test_the_promise_holds(call, report, tmp_path, model, budget):
    pytest.importorskip("optax")
    words = ("--arg", "f32[2048,64]", "--optimizer", "sgd(1e-3)", "--on", "tpu:v5e")
    plan = ("plan", f"keras:{FILE}:{model}", *words, "--budget", budget, "--emit", "keras")
    _, out, err = call(*plan)
    kept, peak = map(float, re.search(_KEPT, err).groups())
    scope = out.splitlines()[0]
    shutil.copy(Path(__file__).parent / FILE, tmp_path / FILE)
    again = tmp_path / f"again_{model}.py"
    again.write_text(
        f"import keras\nimport keras_models\n\n\ndef build():\n    {scope}\n"
        f"        return keras_models.{model}()\n"
    )
    found = report(f"keras:{again}:build", *words)
    assert found["totals"]["computed_nbytes"] / 2**20 == pytest.approx(kept, abs=0.006)
    assert found["peak"]["nbytes"] / 2**20 == pytest.approx(peak, abs=0.006)


def test_layers_with_state_are_not_planned(call):
    words = ("--arg", "f32[2048,64]", "--on", "tpu:v5e", "--budget", "1MiB", "--emit", "keras")
    code, _, err = call("plan", f"keras:{FILE}:with_state", *words)
    assert code == 1
    assert "the lowest peak found is about 1.54 MiB" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((f"keras:{FILE}:own_loss", *X), "own_loss fails: TypeError"),
        ((f"keras:{FILE}:batch", *X), "makes a value of type tuple, which is no keras.Model"),
        ((MODEL, *X * 4), "is called with the batch of fit"),
        ((MODEL, *X, "--kwarg", "z=f32[4]"), "is called with the batch of fit"),
        ((MODEL, *X, *LABELS, "--optimizer", "adam"), "is compiled with an optimizer of its own"),
        ((MODEL, "--arg", "f32[4,9,2,7]", *LABELS), "fails"),
    ],
)
def test_what_is_wrong_is_one_line(call, words, message):
    code, _, err = call("report", *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
