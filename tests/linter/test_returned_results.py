"""A checkpoint at the end of a loss, however the loss hands its result on (JXR101, JXR102)."""

import textwrap

import pytest

from jaxresid.linter import lint_source
from jaxresid.settings.config import Options, load

LOSS = """
import jax
import jax.numpy as jnp


def trunk(w, x):
    return jnp.tanh(x @ w)


def head(w, x):
    return jnp.sin(x @ w)


def loss(w, x, y, flag):
    h = {first}
    {end}


step = jax.value_and_grad(loss)
"""


@pytest.fixture
def codes(tmp_path):
    config = load(tmp_path, Options(select=("JXR101", "JXR102")), isolated=True)

    def said(source):
        return [v.code for v in lint_source(textwrap.dedent(source), "m.py", config=config)]

    return said


def _loss(end, first="trunk(w, x)"):
    return LOSS.format(first=first, end=textwrap.indent(textwrap.dedent(end), "    ").strip())


WRAPPED = "jax.checkpoint(head)(w, h)"
ENDS = {
    "an arm": f"if flag:\n    z = {WRAPPED}\nelse:\n    z = head(w, h)\nreturn jnp.mean(z)",
    "the other arm": f"if flag:\n    z = head(w, h)\nelse:\n    z = {WRAPPED}\nreturn z.mean()",
    "over a default": f"z = head(w, h)\nif flag:\n    z = {WRAPPED}\nreturn z.mean()",
    "a return of several": f"if flag:\n    return {WRAPPED}.sum()\nreturn head(w, h).sum()",
    "a conditional": f"return ({WRAPPED} if flag else head(w, h)).sum()",
    "names": f"z = {WRAPPED}\ne = z - y\nm = jnp.mean(e ** 2)\nreturn m, e",
    "means of each": f"zs = {WRAPPED}\nm = jnp.stack([jnp.mean(z) for z in zs])\nreturn m.sum()",
    "joined": f"return jnp.stack([z for z in {WRAPPED}]).sum()",
    "their sum": f"return sum(z.mean() for z in {WRAPPED})",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_last_stage(end, codes):
    assert codes(_loss(end)) == ["JXR102"]


@pytest.mark.integration
def test_a_stage_in_the_argument(codes):
    end = "return jax.checkpoint(head)(w, trunk(w, h)).sum()"
    assert codes(_loss(end, first="x.reshape(-1, 8)")) == ["JXR102"]


def test_a_stage_under_a_flag(codes):
    end = f"if flag:\n    h = trunk(w, h)\nreturn {WRAPPED}.sum()"
    assert codes(_loss(end, first="x.reshape(-1, 8)")) == ["JXR102"]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_all_of_it(end, codes):
    """The same losses that do nothing before."""
    first = "x.reshape(-1, 8)"
    expected = [] if end == ENDS["over a default"] else ["JXR101"]  # which is computed in vain
    assert codes(_loss(end, first=first)) == expected


@pytest.mark.integration
@pytest.mark.parametrize(
    "end",
    [
        f"if flag:\n    z = {WRAPPED}\nelse:\n    z = h\nz = head(w, z)\nreturn z.mean()",
        f"z = {WRAPPED}\nif flag:\n    z = head(w, z)\nreturn z.mean()",
        f"z = h\nif flag:\n    z = {WRAPPED}\n    z = head(w, z)\nreturn z.mean()",
        f"z = {WRAPPED}\nfor _ in range(2):\n    z = head(w, z)\nreturn z.mean()",
        f"z = h\nfor _ in range(2):\n    z = trunk(w, z)\n    z = {WRAPPED}\nreturn z.mean()",
        f"z = {WRAPPED}\nreturn head(w, z).mean() if flag else head(w, h).mean()",
        # More than a reduction of each, or less.
        f"return sum(jnp.sin(z) for z in {WRAPPED}).sum()",
        f"return sum(z.mean() for z in {WRAPPED} if flag)",
        f"return sum(h.mean() for z in {WRAPPED})",
        f"return max(z.mean() for z in {WRAPPED})",
        f"z = {WRAPPED}\nz += head(w, z)\nreturn z.mean()",
        f"for z in {WRAPPED}:\n    h = z\nreturn h.mean()",
        f"return z.mean() if (z := {WRAPPED}).any() else head(w, z).mean()",
    ],
)
def test_what_is_followed_by_more(end, codes):
    assert codes(_loss(end)) == []


MADE = """
import jax
import jax.numpy as jnp


class Solver:
    def make(self, head):
        def loss(w, x):
            h = jnp.tanh(x @ w)
            return jnp.mean(jax.checkpoint(head)(w, h))

        return loss

    def step(self, head):
        loss = self.make(head)

        def step(w, x):
            {use}

        return step
"""


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("return jax.grad(loss)(w, x)", ["JXR102"]),
        ("return jax.grad(lambda w: loss(w, x))(w)", ["JXR102"]),
        # Evaluated as well, which differentiates nothing.
        ("return jax.grad(lambda w: loss(w, x))(w), loss(w, x)", ["JXR102"]),
        # A part of something larger in one of two places.
        ("return jax.grad(lambda w: loss(w, x))(w), jax.grad(lambda w: g(loss(w, x)))(w)", []),
        ("return loss(w, x)", []),
        ("return jax.lax.scan(lambda w, x: (jax.grad(loss)(w, x), 0), w, x)", []),
    ],
)
def test_a_loss_that_a_method_makes(use, expected, codes):
    assert codes(MADE.format(use=use)) == expected


PARTS = """
import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Pair(NamedTuple):
    first: jax.Array
    second: jax.Array


@dataclasses.dataclass
class Output:
    first: jax.Array
    second: jax.Array


def head(w, h):
    return jnp.sin(h @ w)


def forward(w, x):
    h = jnp.tanh(x @ w)
    z = jax.checkpoint(head)(w, h)
    {end}


def loss(w, x):
    {use}


step = jax.grad(loss)
"""


@pytest.mark.parametrize(
    ("end", "use", "expected"),
    [
        ("return dict(first=h, second=z)", 'return forward(w, x)["second"].mean()', True),
        ("return dict(first=h, second=z)", 'return forward(w, x)["first"].mean()', False),
        ("o = {}; o['a'] = z; o['b'] = h; return o", "return forward(w, x)['a'].mean()", True),
        ("o = {}; o['a'] = z; o['b'] = h; return o", "return forward(w, x)['b'].mean()", False),
        ("return {'a': {'b': z}}", "return forward(w, x)['a']['b'].mean()", True),
        ("return {'a': {'b': z}, 'c': h}", "return forward(w, x)['c'].mean()", False),
        ("return Output(h, z)", "return forward(w, x).second.mean()", True),
        ("return Output(h, z)", "return forward(w, x).first.mean()", False),
        ("return Output(second=h, first=z)", "return (forward(w, x).first - 1).mean()", True),
        ("return Pair(h, z)", "return forward(w, x)[1].mean()", True),
        ("return Pair(h, z)", "_, z = forward(w, x); return z.mean()", True),
        ("return Pair(h, z)", "z, _ = forward(w, x); return z.mean()", False),
        ("return z, h", "z, _ = forward(w, x); return z.mean()", True),
        ("return z, h", "_, h = forward(w, x); return h.mean()", False),
        ("return h, z", "o = forward(w, x); return o[1].mean(), o[0]", True),
        ("return h, z", "o = forward(w, x); return o[0].mean(), o[1]", False),
        ("return {'a': z}", "o = forward(w, x); return {'loss': o['a'].mean()}", False),
        ("return {'a': z}", "return jnp.sin(forward(w, x)['a'] @ w).mean()", False),
        ("return {k: z for k in 'ab'}", "return forward(w, x)['a'].mean()", False),
    ],
)
def test_the_part_that_the_loss_takes(end, use, expected, codes):
    source = PARTS.format(end=end, use=use)
    assert codes(source) == (["JXR102"] if expected else [])
