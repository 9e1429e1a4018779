"""What a report says of the losses that `--loss` names, of which the user has no line."""

import json

import pytest

from jaxresid.cli.main import run
from jaxresid.results import Location

pytest.importorskip("flax")
PROGRAM = """\
from flax import linen as nn


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4096)(x)
"""
ASKED = ("--arg", "f32[4096,8]", "--arg", "i32[4096]", "--loss", "cross-entropy", "--on")


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    def said(command, *options):
        (tmp_path / "wide.py").write_text(PROGRAM)
        monkeypatch.chdir(tmp_path)
        code = run([command, "linen:wide.py:Net()", *ASKED, "gpu:h100", "-q", *options])
        assert code == 0
        return capsys.readouterr().out

    return said


def test_the_peak_is_in_the_loss(said):
    text = said("report")
    assert "peak in the loss (--loss cross-entropy)" in text
    words = " ".join(text.split())
    assert "what the loss (--loss cross-entropy) makes of them" in words
    assert "in a function of your own, with --loss module:function, compute the loss" in words
    assert "next: the loss (--loss cross-entropy) keeps" in words
    assert "standard_losses" not in text


@pytest.mark.parametrize("options", [("-v",), ("-f", "svg"), ("-f", "html"), ("-f", "json")])
def test_no_line_of_ours_is_shown(options, said):
    assert "standard_losses" not in said("report", *options)


def test_the_json_has_the_loss_as_the_file(said):
    peak = json.loads(said("report", "-f", "json"))["peak"]["location"]
    assert peak["file"] == "<--loss cross-entropy>"
    assert Location(**peak).place == "the loss (--loss cross-entropy)"


def test_check_is_at_the_model(said):
    text = said("check")
    assert "--> wide.py:7" in text
    assert "standard_losses" not in text


def test_what_has_no_line_is_at_the_models_class(said):
    text = said("check", "--max-peak", "1KiB", "--exit-zero", "-f", "concise")
    assert "wide.py:4:1: JXR842 " in text
    assert "adapters/step.py" not in text
