"""Models of frameworks in mode program: what they compute when they are called, without a loss."""

import pytest

pytest.importorskip("flax.nnx")

LINEN, NNX = "linen:flax_models.py:Linen(8)", "nnx:flax_models.py:Net(8)"
DECODER = "linen:flax_models.py:Decoder()"
X, PROGRAM = ("--arg", "f32[4,8]"), ("--mode", "program")
TOKEN, LONG = ("--arg", "f32[4,1,8]"), ("--init-arg", "f32[4,32,8]")


@pytest.fixture
def fails(call):
    def refused(*words):
        code, out, err = call(*words)
        assert (code, out) == (2, "")
        return " ".join(err.split())

    return refused


def flops(found):
    return found["cost"]["matmul_flops"] + found["cost"]["elementwise_flops"]


def needed(report, *words):
    found = report(*words)
    assert found["target"]["mode"] == "program"
    assert not found["target"]["gradients"]
    assert not found["residuals"]
    return found["peak"]["nbytes"], flops(found)


def test_a_call_is_what_one_writes_by_hand(report):
    model = needed(report, LINEN, *X, *PROGRAM, "--kwarg", "train=False")
    by_hand = needed(report, "flax_models.py:evaluating")
    key = 8  # of the random key, which the call is given and does not need
    assert (model[0] - key, model[1]) == by_hand


def test_what_is_only_read_is_not_returned(call):
    def outputs(*words):
        code, out, err = call("report", LINEN, *X, *PROGRAM, *words, "--view", "peak")
        assert code == 0, err
        return "reuse donated arguments" in out

    assert outputs("--kwarg", "train=True")
    assert not outputs("--kwarg", "train=False")


def test_a_cache_is_updated_in_place(report):
    model = needed(report, DECODER, *TOKEN, *LONG, *PROGRAM)
    by_hand = needed(report, "flax_models.py:decoding")
    assert (model[0] - 8, model[1]) == by_hand
    found = report(DECODER, *TOKEN, *LONG, *PROGRAM)
    assert not [f for f in found["findings"] if "donat" in f["name"]]


def test_a_cache_of_unknown_length_is_refused(fails):
    message = fails("report", DECODER, *TOKEN, *PROGRAM)
    assert "has a cache" in message
    assert "--init-arg" in message


@pytest.mark.parametrize("model", [LINEN, NNX])
def test_what_changes_is_returned(report, model):
    """Running means of a call in training, and nothing else of the state."""
    training = report(model, *X, *PROGRAM)["peak"]["breakdown"]
    assert training["output"] >= 4 * 8 * 4
    assert report(model, *X)["target"]["mode"] == "loss"


def test_a_method(report, fails):
    whole = needed(report, DECODER, *TOKEN, *LONG, *PROGRAM)
    part = needed(report, DECODER, *TOKEN, *PROGRAM, "--method", "normalised")
    assert part[1] < whole[1]
    loss = report(DECODER, *TOKEN, "--method", "normalised")
    assert loss["target"]["mode"] == "loss"
    assert "did you mean `normalised`" in fails(
        "report", DECODER, *TOKEN, *PROGRAM, "--method", "normalise"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((LINEN, *X, *PROGRAM, "--loss", "mean"), "--loss does not go with it"),
        ((LINEN, *X, *PROGRAM, "--optimizer", "adam(1e-3)"), "--optimizer does not go with it"),
        ((LINEN, *X, *PROGRAM, "--argnums", "0"), "--argnums is for what is differentiated"),
        ((NNX, *X, *PROGRAM, "--init-arg", "f32[4,8]"), "--init-arg is for linen: modules"),
        ((LINEN, *X, "--loss", "flax_models.py:own_loss", "--method", "m"), "calls what it likes"),
        (("flax_models.py:linen_loss", "--method", "m"), "--method is for a framework's model"),
    ],
)
def test_what_does_not_go_together(fails, words, message):
    assert message in fails("report", *words)


def test_equinox(report):
    pytest.importorskip("equinox")
    model = ("equinox:equinox_models.py:Net(8)", *X)
    assert needed(report, *model, *PROGRAM)[1] < flops(report(*model))
