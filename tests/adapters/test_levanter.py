"""`levanter:` targets, held against the loss that a person writes without them."""

import pytest

pytest.importorskip("levanter.models.gpt2")

GPT = "levanter:levanter_models.py:CONFIG"
TOKENS = ("--arg", "i32[4,32]")
SETTINGS = ("--kwarg", "vocab_size=128", "--kwarg", 'mp="p=f32,c=bfloat16"')


def test_the_loss_is_what_one_writes_by_hand(report):
    found = report(GPT, *TOKENS, *SETTINGS)
    written = report("levanter_models.py:loss", "--argnums", "0")
    assert found["totals"] == written["totals"]
    assert found["cost"] == written["cost"]
    assert len(found["target"]["differentiated"]) == len(written["target"]["differentiated"])


def test_the_vocabulary_and_the_precision_are_settings(report):
    wide = report(GPT, *TOKENS)
    assert wide["cost"]["forward_flops"] > report(GPT, *TOKENS, *SETTINGS)["cost"]["forward_flops"]
    assert "bfloat16" not in {each["dtype"] for each in wide["residuals"]}


def test_a_configuration_and_a_step(report):
    pytest.importorskip("optax")
    words = ("--optimizer", "adam(1e-3)")
    call = "levanter:levanter.models.gpt2:Gpt2Config(num_layers=2, hidden_dim=32, num_heads=2)"
    roles = report(call, *TOKENS, *words)["peak"]["breakdown"]
    assert roles["optimizer-state"] == 2 * roles["parameters"] + 4


def test_a_loss_of_the_users(report):
    own = report(GPT, *TOKENS, "--loss", "levanter_models.py:own_loss")
    assert own["target"]["mode"] == "loss"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((GPT, "--arg", "i32[4]"), "is trained on tokens"),
        ((GPT, *TOKENS, *TOKENS), "is trained on tokens"),
        ((GPT, *TOKENS, "--kwarg", "vocab=3"), "is trained on tokens"),
        ((GPT, *TOKENS, "--kwarg", 'mp="half-ish"'), "mp='half-ish' is no policy of jmp"),
        ((GPT, *TOKENS, "--loss", "mean"), "has a loss of its own"),
        (("levanter:levanter_models.py:VOCAB", *TOKENS), "is no levanter.models.lm_model.LmConfig"),
    ],
)
def test_what_is_wrong_is_one_line(call, words, message):
    code, _, err = call("report", *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
