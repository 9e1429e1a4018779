"""Adapters of other packages, found by their entry point as an installed package declares it."""

import os
import sys
from pathlib import Path

import pytest

from jaxresid.adapters.registry import framework_reference, prepare
from jaxresid.targets.references import Reference, parse_reference, reference_from

ADAPTER = """
import jax, jax.numpy as jnp
from jaxresid.adapters import ModelRequest, adapted

class Chain:
    def __init__(self, width): self.width = width

def chain_of(request: ModelRequest):
    model = request.made(Chain, "twolayers.Chain")
    w = jax.ShapeDtypeStruct((model.width, model.width), jnp.float32)
    def objective(params, state, rng, *args, **kwargs):
        return request.loss(lambda x: jnp.sin(x @ params["w"]), *args, **kwargs), state
    return adapted(request, objective, {"w": w})

def pair(request): return (lambda x: jnp.sin(x).sum()), request.inputs.args
def wrong(request): return 3
def broken(request): raise ValueError("no such layer")
number = 4
"""
POINTS = """[jaxresid.targets]
chain = twolayers:chain_of
pair = twolayers:pair
wrong = twolayers:wrong
broken = twolayers:broken
number = twolayers:number
gone = twolayers.gone:adapt
"""


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """A package with its metadata, as pip lays it out."""
    (tmp_path / "twolayers.py").write_text(ADAPTER)
    metadata = tmp_path / "twolayers-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: twolayers\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_adapter_of_another_package(report):
    found = report("chain:twolayers:Chain(8)", "--arg", "f32[4,8]")
    assert found["target"]["differentiated"] == ["params['w']"]
    assert found["cost"]["forward_flops"] >= 2 * 4 * 8 * 8
    pytest.importorskip("optax")
    step = report("chain:twolayers:Chain(8)", "--arg", "f32[4,8]", "--optimizer", "sgd(0.1)")
    assert step["target"]["mode"] == "program"


def test_an_adapter_that_returns_a_function_and_arguments(report):
    assert report("pair:twolayers:Chain", "--arg", "f32[4]")["target"]["differentiated"] == ["x"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("wrong:twolayers:Chain", "wrong: the adapter must return jaxresid.adapters.Adapted, (fun"),
        ("broken:twolayers:Chain", "with these inputs fails: ValueError: no such layer"),
        ("number:twolayers:Chain", "number: the adapter twolayers:number is not a function"),
        ("gone:twolayers:Chain", "gone: the adapter twolayers.gone:adapt fails: ModuleNotFound"),
        ("chain:twolayers:number", "is no twolayers.Chain but a value of type int"),
        ("chian:twolayers:Chain", "did you mean `chain`?"),
    ],
)
def test_what_is_wrong_is_one_line(call, target, message):
    code, _, err = call("report", target, "--arg", "f32[4]")
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_a_framework_that_is_not_installed_is_one_line(call, monkeypatch):
    monkeypatch.setattr("jaxresid.adapters.registry.HOMES", {"nnx": "nosuchlibrary.nnx"})
    monkeypatch.setattr("jaxresid.cli.calls.HOMES", {"nnx": "nosuchlibrary.nnx"})
    code, _, err = call("report", "nnx:Linear(2, 2)", "--arg", "f32[4,2]")
    assert code == 2
    assert err.splitlines()[-1] == (
        "jaxresid: error: nnx: needs nosuchlibrary, which is not installed here: pip install"
        " nosuchlibrary"
    )


@pytest.mark.parametrize(
    ("framework", "imports", "base"),
    [
        ("linen", "flax.linen", "flax.linen.Module"),
        ("nnx", "flax.nnx", "flax.nnx.Module"),
        ("equinox", "equinox", "equinox.Module"),
    ],
)
def test_a_model_without_its_framework_is_one_line(call, tmp_path, framework, imports, base):
    pytest.importorskip(imports)
    source = f"import {imports}\n\nclass Net({base}):\n    pass\n\nclass Plain:\n    pass\n"
    (tmp_path / "nets.py").write_text(source)
    code, _, err = call("report", f"{tmp_path}/nets.py:Net", "--arg", "i32[4]")
    assert code == 2
    assert err.splitlines()[-1].endswith(
        f"nets.py:Net is a model, not a function; write '{framework}:{tmp_path}/nets.py:Net()',"
        " with what the class takes in the brackets"
    )
    assert "is a model" not in call("report", f"{tmp_path}/nets.py:Plain", "--arg", "f32[4]")[2]


def test_keras_is_imported_for_jax_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    prepare("nnx")
    assert "KERAS_BACKEND" not in os.environ
    prepare("keras")
    assert os.environ["KERAS_BACKEND"] == "jax"
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    prepare("keras")
    assert os.environ["KERAS_BACKEND"] == "torch"


def test_a_transformers_without_flax_classes_is_one_line(call, tmp_path):
    (tmp_path / "transformers.py").write_text("")
    metadata = tmp_path / "transformers-5.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.1\n")
    code, _, err = call("report", "transformers:FlaxBertModel", "--arg", "i32[4,2]")
    sys.modules.pop("transformers", None)
    assert code == 2
    assert "transformers: 5.1 has no Flax classes; those before 5 have" in err


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nnx:train.model:Net", ("nnx", "train.model", "Net")),
        ("nnx:a/b.py:Net({'a': 1}, key='x:y')", ("nnx", "a/b.py", "Net({'a': 1}, key='x:y')")),
        ("linen:Dense({1: 2})", (None, "linen", "Dense({1: 2})")),
        ("train/model.py:loss", (None, "train/model.py", "loss")),
        ("train.model:Net.loss", (None, "train.model", "Net.loss")),
    ],
)
def test_references(text, parts):
    assert parse_reference(text) == Reference(*parts)
    assert str(Reference(*parts)) == text


@pytest.mark.parametrize("text", ["loss", "", ":", "a:", ":b"])
def test_no_references(text):
    assert parse_reference(text) is None


def test_files_of_references_are_moved():
    assert reference_from(Path(".."), "nnx:a.py:Net('b.py:c')") == "nnx:../a.py:Net('b.py:c')"
    assert reference_from(Path(".."), "a.py:loss") == "../a.py:loss"
    for other in ("nnx:a.b:Net", "make_inputs", "adamw(1e-3)"):
        assert reference_from(Path(".."), other) == other


def test_a_module_of_the_users_is_no_framework(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert framework_reference("linen:Dense(3)") == Reference("linen", "flax.linen", "Dense(3)")
    (tmp_path / "linen.py").write_text("def loss(x): return x\n")
    assert framework_reference("linen:loss") is None
    assert framework_reference("other:loss") is None
