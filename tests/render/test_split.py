"""`jaxresid split`: the real jaxprs, numbered and folded."""

import json

import jax
import jax.numpy as jnp
import pytest

from jaxresid.cli.main import run
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import inspection
from jaxresid.serialization.encoding import json_document
from tests.schemas import validate

X, WS = jax.ShapeDtypeStruct((4, 8), "float32"), jax.ShapeDtypeStruct((3, 8, 8), "float32")


def stack(x, ws):
    def body(x, w):
        return jnp.sin(x @ w), None

    return jax.lax.scan(body, x, ws)[0].sum()


def split(fun=stack, args=(X, WS), max_eqns=200, depth=2):
    found = inspection(Question(fun, args))
    return found.subject.split(found.report, max_eqns=max_eqns, depth=depth)


def equations(listing):
    for equation in listing.equations:
        yield equation
        for inner in equation.inner:
            yield from equations(inner)


def numbers(values):
    return [v.residual for v in values if v.residual is not None]


def test_each_residual_stands_in_both_passes():
    found = split()
    count = len(found.residuals)
    assert numbers(found.forward.outputs) == list(range(count))
    assert numbers(found.backward.inputs) == list(range(count))


def test_numbers_go_into_loops():
    found = split()
    (forward,) = (e for e in found.forward.equations if e.primitive == "scan")
    (backward,) = (e for e in found.backward.equations if e.primitive == "scan")
    cosine = next(
        i
        for i, r in enumerate(found.residuals)
        if r.origin.kind == "computed" and r.origin.primitive == "cos"
    )
    made = [e for e in equations(forward.inner[0]) if cosine in numbers(e.outputs)]
    assert [e.primitive for e in made] == ["cos"]
    read = [e for e in equations(backward.inner[0]) if cosine in numbers(e.inputs)]
    assert [e.primitive for e in read] == ["mul"]


def test_lines_stand_beside_eqns():
    cos = next(e for e in equations(split().forward) if e.primitive == "cos")
    assert cos.location.function.endswith("stack.body")
    assert cos.location.code == "return jnp.sin(x @ w), None"


def test_depth_folds():
    (scan,) = (e for e in split(depth=0).forward.equations if e.primitive == "scan")
    assert scan.inner == ()
    (unfolded,) = (e for e in split(depth=1).forward.equations if e.primitive == "scan")
    assert scan.folded == len(unfolded.inner[0].equations) > 0
    assert unfolded.folded == 0
    assert ("length", "3") in scan.params


def test_max_eqns_cuts_each_jaxpr():
    def chain(x):
        for _ in range(10):
            x = jnp.sin(x)
        return x.sum()

    found = split(chain, (X,), max_eqns=5)
    assert len(found.forward.equations) == 5
    assert found.forward.hidden == 21 - 5  # ten sines, ten cosines, a sum


def test_variables_are_named_once():
    for side in (split().forward, split().backward):
        declared = [v.name for v in side.inputs] + [
            v.name for e in equations(side) for v in e.outputs if v.name != "_"
        ]
        assert len(declared) == len(set(declared))


def test_json():
    value = json.loads(json_document(split()))
    validate(value, "split")


@pytest.mark.parametrize("options", [[], ["--source"], ["--depth", "0"], ["--max-eqns", "1"]])
def test_command(tmp_path, monkeypatch, capsys, options):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sambar.py").write_text(
        "import jax.numpy as jnp\ndef f(x): return jnp.sin(x).sum()\n"
    )
    assert run(["split", "sambar.py:f", "--arg", "f32[3]", *options]) == 0
    out = capsys.readouterr().out
    assert "forward pass" in out
    assert "backward pass" in out
    assert ("sambar.py:2 f  def f(x)" in out) == (options == ["--source"])
    assert ("more eqns" in out) == ("--max-eqns" in options)


def test_command_fails_as_report_does(capsys):
    assert run(["split", "nosuchmodule:f"]) == 2
    assert "no module named 'nosuchmodule'" in capsys.readouterr().err


def test_command_tells_a_training_step(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stepper.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def step(w, x): return w - jax.grad(lambda w: jnp.sin(w * x).sum())(w)\n"
    )
    assert run(["split", "stepper.py:step", "--arg", "f32[3]", "--arg", "f32[3]"]) == 2
    assert (
        "stepper.py:step is a program with both passes of a gradient in it (grad at stepper.py:2)"
        in " ".join(capsys.readouterr().err.split())
    )
    given = ["--arg", "f32[]", "--arg", "f32[]", "--mode", "loss"]
    assert run(["split", "stepper.py:step", *given]) == 0
