"""What the user's functions are called with, while the code runs once more to be watched."""

from pathlib import Path

import pytest

from jaxresid.advice.plan.source.observed_calls import observe_calls
from jaxresid.advice.plan.verification import retrace
from jaxresid.cli.options.request import Request
from jaxresid.cli.resolve import subject_of

STEP = """
import jax
import jax.numpy as jnp

transposed = []

@jax.custom_vjp
def activation(x):
    return jnp.sin(x)

def forward(x):
    return activation(x), x

def backward(x, ct):
    transposed.append(x)
    return (ct * jnp.cos(x),)

activation.defvjp(forward, backward)

def layer(x, w, train):
    return activation(x @ w) if train else x

def loss(ws, x):
    for w in ws:
        x = layer(x, w, True)
    {also}
    return jnp.sum(x)

def step(ws, x):
    return jax.tree.map(jnp.subtract, ws, jax.grad(loss)(ws, x))

def step_inputs():
    return [jnp.ones((4, 4))] * 2, jnp.ones((2, 4))
"""


@pytest.mark.parametrize(
    ("also", "is_differentiated"),
    [("", False), ('jax.debug.print("{}", x[0, 0])', True)],
    ids=["no gradient is taken", "but where one has effects"],
)
def test_a_step_is_watched(also, is_differentiated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("model_to_watch.py")
    path.write_text(STEP.replace("{also}", also))
    line = 1 + STEP.splitlines().index("        x = layer(x, w, True)")
    target = f"{path.name}:step"
    subject = subject_of(Request(target, None, False, (), (), False, None, False))
    transposed = subject.fun.__globals__["transposed"]
    transposed.clear()
    key = (str(path.absolute()), line, "layer")
    seen = observe_calls([key], lambda: retrace(subject))
    assert seen[key].positional == ("traced", "traced", "static")
    assert bool(transposed) == is_differentiated
