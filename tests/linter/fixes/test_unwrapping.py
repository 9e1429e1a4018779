"""What is left where a checkpoint is taken away."""

import ast
import textwrap

import pytest

from jaxresid.linter import fix_source, lint_source
from jaxresid.settings.config import Options, load

HEAD = """import jax


def body(x):
    return (x @ x).sum()


def loss(args, x, a):
"""


def fixed(body, tmp_path):
    config = load(tmp_path, Options(select=("JXR101", "JXR102", "JXR107")), isolated=True)
    text = HEAD + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    path = str(tmp_path / "model.py")
    assert lint_source(text, path, config=config)
    after = fix_source(text, path, unsafe=True, config=config)
    ast.parse(after)
    assert after.startswith(HEAD)
    return textwrap.dedent(after.removeprefix(HEAD)).strip("\n")


GRAD = "\nreturn jax.value_and_grad(f)(x)"
SUM = "return jax.value_and_grad(lambda x: {}.sum())(x)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # A choice that is none any more.
        ("f = jax.checkpoint(body) if args.remat else body" + GRAD, "f = body" + GRAD),
        ("f = body if args.off else jax.checkpoint(body)" + GRAD, "f = body" + GRAD),
        # A name that would be assigned to itself.
        ("f = body\nf = jax.checkpoint(f)" + GRAD, "f = body" + GRAD),
        ("f = body\nif args.remat:\n    f = jax.checkpoint(f)" + GRAD, "f = body" + GRAD),
        (
            "f = body\nif args.remat:\n    print('remat')\n    f = jax.checkpoint(f)" + GRAD,
            "f = body\nif args.remat:\n    print('remat')" + GRAD,
        ),
        # The body of a lambda in the place of its call.
        (SUM.format("jax.checkpoint(lambda x, y: x + y)(x, a)"), SUM.format("(x + a)")),
        (SUM.format("jax.checkpoint(lambda h: h.T)(x)"), SUM.format("x.T")),
        (SUM.format("jax.checkpoint(lambda h: 2 * h)(x + a)"), SUM.format("(2 * (x + a))")),
    ],
)
def test_what_is_left_is_what_a_person_would_leave(before, after, tmp_path):
    assert fixed(before, tmp_path) == after


@pytest.mark.parametrize(
    "body",
    [
        # A comment belongs to somebody.
        "f = body\nf = jax.checkpoint(f)  # saves memory" + GRAD,
        "f = body\nif args.remat:  # saves memory\n    f = jax.checkpoint(f)" + GRAD,
        # The other way would be lost.
        "f = body\nif args.remat:\n    f = jax.checkpoint(f)\nelse:\n    print('off')" + GRAD,
        "f = body\nif (r := args.remat):\n    f = jax.checkpoint(f)" + GRAD,
        # Arguments would be computed twice, not at all, or under another name.
        SUM.format("jax.checkpoint(lambda h: h + h)(x * a)"),
        SUM.format("jax.checkpoint(lambda h: x + a)(x * a)"),
        SUM.format("jax.checkpoint(lambda h: sum([x * h for x in (1, 2)]))(x)"),
        SUM.format("jax.checkpoint(lambda h, y=2: h * y)(x)"),
        SUM.format("jax.checkpoint(lambda *h: h[0] + h[1])(x, a)"),
    ],
)
def test_where_that_needs_more_thought_nothing_is_changed(body, tmp_path):
    assert fixed(body, tmp_path) == textwrap.dedent(body)
