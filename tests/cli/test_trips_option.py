"""`--trips` of the commands besides `report`: the FLOPs are those of that many trips."""

import json

import pytest

from jaxresid.base.text.units import format_flops

SIZE = 64
PROGRAM = f"""
import jax, jax.numpy as jnp
def solved(x):
    return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x @ x, x)
@jax.checkpoint
def layer(w, x):
    return jnp.tanh(x @ w) * solved(x)
def loss(w, x):
    return layer(w, x).sum()
def loss_inputs():
    return (jax.ShapeDtypeStruct(({SIZE}, {SIZE}), "float32"),) * 2
"""
MATMUL = 2 * SIZE**3
# Its condition has a sum and a comparison.
TRIP = MATMUL + SIZE**2


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return "model.py:loss"


@pytest.mark.integration
def test_check(program, call):
    code, out, err = call("check", program, "--trips", "11", "--argnums", "0")
    assert code == 1, err
    # The checkpoint recomputes the loop and the matmul; its tanh and product are too few to show.
    assert f"{format_flops(11 * TRIP + MATMUL)} are recomputed" in " ".join(out.split())


@pytest.mark.integration
def test_sweep(program, call, tmp_path):
    def swept(trips):
        words = ("sweep", program, "--argnums", "0", "--policy", "as-written", "--on", "cpu")
        code, out, err = call(*words, "--trips", trips, "--results", "r.jsonl", "-f", "json-lines")
        assert code == 0, err
        return json.loads(out)

    first, again = swept("1"), swept("11")
    assert again["compiled"] == first["compiled"]
    # What XLA said comes from the file, what is recomputed does not.
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 1
    assert again["recompute_flops"] - first["recompute_flops"] == 10 * TRIP
