"""`nnx:` and `linen:` targets, held against what a person writes without them."""

import pytest

from tests.where import ROOT

pytest.importorskip("flax.nnx")
pytest.importorskip("optax")

NNX, LINEN = "nnx:flax_models.py:Net(8)", "linen:flax_models.py:Linen(8)"
BATCH = ("--arg", "f32[4,8]")
STEP = ("--optimizer", "adam(1e-3)")


@pytest.mark.parametrize(("model", "by_hand"), [(NNX, "nnx_loss"), (LINEN, "linen_loss")])
def test_the_loss_is_what_one_writes_by_hand(report, model, by_hand):
    found = report(model, *BATCH)
    written = report(f"flax_models.py:{by_hand}", "--argnums", "0")
    for part in ("totals", "cost"):
        assert found[part] == written[part]
    assert found["target"]["mode"] == "loss"
    # Four matrices and vectors of two layers, scale and bias of the normalisation.
    assert len(found["target"]["differentiated"]) == 6
    assert all(path.startswith("params") for path in found["target"]["differentiated"])


@pytest.mark.parametrize("model", [NNX, LINEN])
def test_lines_are_the_models(report, model):
    origins = [each["origin"] for each in report(model, *BATCH)["residuals"]]
    places = [each["location"]["file"] for each in origins if each.get("location")]
    assert places
    assert set(places) == {"flax_models.py"}


@pytest.mark.parametrize("model", [NNX, LINEN])
def test_a_step_donates_and_returns_what_it_updates(report, model):
    found = report(model, *BATCH, *STEP)
    assert found["target"]["mode"] == "program"
    roles = found["peak"]["breakdown"]
    # Adam has two moments of each parameter, and a count.
    assert roles["optimizer-state"] == 2 * roles["parameters"] + 4
    assert not found["findings"]


@pytest.mark.parametrize("model", [NNX, LINEN])
@pytest.mark.parametrize(
    ("options", "labels"),
    [
        (("--loss", "cross-entropy"), "i32[4]"),
        (("--loss", "squared-error"), "f32[4,8]"),
        (("--loss", "flax_models.py:own_loss"), "f32[4,8]"),
    ],
)
def test_losses(report, model, options, labels):
    found = report(model, *BATCH, "--arg", labels, *options)
    assert found["cost"]["backward_flops"] > 0


def test_a_loss_with_auxiliary_data(report):
    own = ("--loss", "flax_models.py:with_aux", "--has-aux")
    assert report(NNX, *BATCH, *own)["target"]["mode"] == "loss"
    assert report(NNX, *BATCH, *own, *STEP)["target"]["mode"] == "program"


def test_settings_are_the_calls_own(report):
    with_dropout = report(LINEN, *BATCH)["totals"]["computed_nbytes"]
    without = report(LINEN, *BATCH, "--kwarg", "train=False")["totals"]["computed_nbytes"]
    assert without < with_dropout
    assert report(LINEN, *BATCH, "--arg", "False")["totals"]["computed_nbytes"] == without


def test_models_without_a_module_are_the_frameworks(report):
    found = report("linen:Dense(3, dtype=jnp.bfloat16)", *BATCH)
    assert found["cost"]["forward_flops"] >= 2 * 4 * 8 * 3
    assert "bfloat16" in {each["dtype"] for each in found["residuals"]}


def test_a_function_of_the_users_makes_the_model(report):
    assert report("nnx:flax_models.py:net(8)", *BATCH)["totals"] == report(NNX, *BATCH)["totals"]


@pytest.mark.parametrize("optimizer", ["sgd(0.1, momentum=0.9)", "flax_models.py:schedule"])
def test_optimizers_of_optax_and_of_the_users(report, optimizer):
    roles = report(LINEN, *BATCH, "--optimizer", optimizer)["peak"]["breakdown"]
    assert roles["optimizer-state"] == roles["parameters"]


def test_batch_sizes(report, call):
    sized = report(LINEN, "--arg", "f32[batch,8]", "--batch", "4")
    assert sized["totals"] == report(LINEN, *BATCH)["totals"]


@pytest.mark.integration
@pytest.mark.parametrize("framework", ["nnx", "linen"])
def test_the_tutorials_steps_without_their_steps(report, framework, monkeypatch):
    monkeypatch.chdir(ROOT)
    file = f"fixtures/tutorials/{framework}_step.py"
    batch = ("--arg", "f32[4096,256]") * 2
    found = report(f"{framework}:{file}:Net", *batch, *STEP, "--loss", "squared-error")
    written = report(f"{file}:train_step")
    for key in ("kept_nbytes", "computed_nbytes"):
        if key in written["totals"]:
            assert found["totals"][key] == written["totals"][key]
    for key in ("forward_flops", "backward_flops"):
        assert found["cost"][key] == written["cost"][key]


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [
        ("check",),
        ("compare",),
        ("plan", "--budget", "4KiB"),
        ("compile", "--on", "cpu"),
        ("sweep", "--on", "cpu", "--policy", "as-written"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("model", [NNX])
def test_every_command_takes_them(call, command, model):
    code, _, err = call(command[0], model, *BATCH, *STEP, *command[1:])
    assert code in (0, 1), err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nnx:flax_models.py:Linenn(8)", *BATCH), "did you mean Linen?"),
        (
            ("nnx:flax_models.py:Linen(8)", *BATCH),
            "is no nnx.Module: its class derives",
        ),
        (
            ("linen:flax_models.py:Net(8)", *BATCH),
            "is no linen.Module: its class derives",
        ),
        (("nnx:flax_models.py:jnp.zeros(3)", *BATCH), "makes an array, which is no nnx.Module"),
        (("nnx:flax_models.py:own_loss.__name__", *BATCH), "but a value of type str"),
        (("nnx:flax_models.py:Net(8", *BATCH), "is not Python ('(' was never closed)"),
        (("nnx:flax_models.py:Net()", *BATCH), "Net() fails: TypeError: "),
        (("nnxx:flax_models.py:Net(8)",), "there is no framework 'nnxx'; did you mean `nnx`?"),
        ((NNX, "--arg", "f32[4,9]"), "fails to trace: TypeError"),
        ((LINEN, *BATCH * 3), "with these inputs fails: TypeError"),
        ((LINEN, *BATCH, "--loss", "cross-entropy"), "give one more"),
        ((LINEN, *BATCH, "--loss", "cross"), "is none of mean, cross-entropy, squared-error"),
        ((LINEN, *BATCH, *BATCH, "--loss", "cross-entropy"), "as the last --arg, i32[4]"),
        ((LINEN, *BATCH, "--arg", "f32[4]", "--loss", "squared-error"), "--arg, f32[4,8]"),
        ((LINEN, *BATCH, "--loss", "flax_models.py:no_loss()"), "of type int"),
        ((LINEN, *BATCH, "--optimizer", "adamm"), "optax has no attribute 'adamm'; did you mean"),
        ((LINEN, *BATCH, "--optimizer", "flax_models.py:no_loss"), "which is no optimizer"),
        ((LINEN, *BATCH, "--has-aux"), "--has-aux needs --loss module:function"),
        ((LINEN, *BATCH, *STEP, "--argnums", "0"), "--argnums is for functions"),
        ((LINEN, "--build"), "--build is for a function"),
        ((LINEN,), "give one SPEC per argument"),
        (("flax_models.py:nnx_loss", "--loss", "mean"), "--loss is for a framework's model"),
    ],
)
def test_what_is_wrong_is_one_line(call, words, message):
    code, _, err = call("report", *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
