"""From a plan to the edit of the user's source. Plans are made by hand; the figures that they
promise are those of the same code edited by hand."""

import ast
import dataclasses
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxresid.advice.plan.source.file_edits import FileEdit
from jaxresid.advice.plan.source.policy_text import policy_text
from jaxresid.advice.plan.source.snippets import code
from jaxresid.advice.plan.source.writing import diff, edits, write
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.cli.options.request import Request
from jaxresid.cli.resolve import inspected
from jaxresid.cli.verify_edit import verify
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.results import (
    Expression,
    JaxInfo,
    Location,
    PlaceInfo,
    Plan,
    PlannedPart,
    PlannedSite,
    PlannedValue,
    Target,
)
from tests.where import FIXTURES

DECODER = FIXTURES / "plan" / "decoder.py"
NAMES = "save_only_these_names('qkv')"
P = "jax.checkpoint_policies"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def plan(*sites, **figures):
    blank = {f.name: 0 for f in dataclasses.fields(Plan) if f.name.endswith(("_nbytes", "_flops"))}
    blank["estimate_nbytes"] = figures.get("peak_nbytes", 0)
    return Plan(
        target=Target("model.py:loss", ()),
        jax=JaxInfo("0", {}),
        place=PlaceInfo("tpu:v5p", "tpu", "as asked", "tpu"),
        chip="v5p",
        offload=False,
        answer="fits",
        recompute_fraction=0.0,
        time_fraction=None,
        sites=sites,
        proven=True,
        tried=1,
        **{**blank, **figures},
    )


def place(text, snippet, nth=0):
    """Row and column of a snippet."""
    offset = -1
    for _ in range(nth + 1):
        offset = text.index(snippet, offset + 1)
    return text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1)


def site(kind, text, call, function, *parts, file="model.py", nth=0, changed=True, calls=1):
    row, column = place(text, call, nth)
    line = text.split("\n")[row - 1].strip()
    return PlannedSite(
        kind, function, Location(file, row, column, "f", line), calls, calls, parts, changed
    )


def part(policy=None, *values, checkpointed=True, calls=1):
    return PlannedPart(calls, checkpointed, policy, values)


REMOVED = part(checkpointed=False)


def value(text, snippet, name, file="model.py", nth=0):
    row, column = place(text, snippet, nth)
    end_row = row + snippet.count("\n")
    last = snippet.rpartition("\n")[2]
    end = len(last) + (column if end_row == row else 0)
    shown = " ".join(snippet.split())
    return PlannedValue(name, "save", 0, Expression(file, row, column, end_row, end, "f", shown))


def subject(fun=None):
    return SimpleNamespace(fun=fun, frames=Frames(), trace=None)


def edited(text, *sites, fun=None, name="model.py"):
    """The text after a plan's edit."""
    Path(name).write_bytes(text.encode())
    found = edits(plan(*sites), subject(fun))
    if not found:
        return text
    (edit,) = found
    assert (edit.display_path, edit.old) == (name, text.encode())
    ast.parse(edit.new)
    return edit.new.decode()


def refused(text, *sites, fun=None, name="model.py"):
    """Why a plan cannot be written, a line each."""
    Path(name).write_text(text)
    with pytest.raises(InputsError) as e:
        edits(plan(*sites), subject(fun))
    head, *reasons = str(e.value).split("\n  ")
    assert head == "the plan cannot be written:"
    assert Path(name).read_text() == text
    return reasons


# -- calls -------------------------------------------------------------------------------------

CALL = (
    "import jax\n\n\ndef block(p, x):\n    return jax.numpy.sin(p @ x)\n\n\n"
    "def loss(ps, x):\n    for p in ps:\n        x = block(p, x)  # one layer\n    return x.sum()\n"
)


def one(text, call, function, *parts, **more):
    return edited(text, site("call", text, call, function, *(parts or (part(),)), **more))


def test_a_call_is_wrapped_where_it_is():
    assert one(CALL, "block(p, x)  #", "block") == CALL.replace(
        "x = block(p, x)  # one", "x = jax.checkpoint(block)(p, x)  # one"
    )


def test_a_policy_is_spelled_out():
    new = one(CALL, "block(p, x)  #", "block", part(NAMES))
    assert f'jax.checkpoint(block, policy={P}.save_only_these_names("qkv"))(p, x)' in new


def test_a_file_that_is_as_planned_is_left_alone():
    same = site("call", CALL, "block(p, x)  #", "block", REMOVED, changed=False)
    assert edited(CALL, same) == CALL


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("block(p, x, True)", "jax.checkpoint(block, static_argnums=(2,))(p, x, True)"),
        ("block(p, x, HEADS)", "jax.checkpoint(block, static_argnums=(2,))(p, x, HEADS)"),
        (
            "block(p, 3, x, 'relu')",
            "jax.checkpoint(block, static_argnums=(1, 3))(p, 3, x, 'relu')",
        ),
        (
            "block(p, x, train=True)",
            "jax.checkpoint(functools.partial(block, train=True))(p, x)",
        ),
        (
            "block(p, x, train=True, mask=x, kind='a')",
            "jax.checkpoint(functools.partial(block, train=True, kind='a'))(p, x, mask=x)",
        ),
        ("block(p, x, mask=None)", "jax.checkpoint(block)(p, x, mask=None)"),
        ("block(*p, x)", "jax.checkpoint(block)(*p, x)"),
        ("block(*p, 3)", "jax.checkpoint(block)(*p, 3)"),
        ("block(\n            p,\n            x,  # in\n        )", None),
        ("self.block(p, x)", "jax.checkpoint(self.block)(p, x)"),
        ("jax.vmap(block)(p, x)", "jax.checkpoint(jax.vmap(block))(p, x)"),
        ("block(p, x).reshape(-1)", "jax.checkpoint(block)(p, x).reshape(-1)"),
        ("x + block(p, x)", "x + jax.checkpoint(block)(p, x)"),
        ("reduce(block, p, x)", "reduce(jax.checkpoint(block), p, x)"),
        ("blocks[0](p, x)", "jax.checkpoint(blocks[0])(p, x)"),
    ],
)
def test_ways_to_call(old, new):
    text = CALL.replace("block(p, x)  #", f"{old}  #").replace(
        "import jax\n", "import functools\n\nimport jax\n\nHEADS = 4\nblocks = [0]\n"
    )
    new = new or old.replace("block(", "jax.checkpoint(block)(")
    function = "blocks" if "blocks" in old else "block"
    line, column = place(text, old)
    given = Location("model.py", line, column + 4 * old.startswith("x + "), "loss")
    assert edited(text, PlannedSite("call", function, given, 1, 1, (part(),), True)) == (
        text.replace(old, new)
    )


def test_the_annotations_of_what_is_called_tell_what_is_no_array():
    text = CALL.replace("def block(p, x)", "def block(p, x, heads: int, *, mode: str)").replace(
        "block(p, x)  #", "block(p, x, h, mode=m)  #"
    )
    new = one(text, "block(p, x, h, mode=m)", "block")
    assert (
        "x = jax.checkpoint(functools.partial(block, mode=m), static_argnums=(2,))(p, x, h)" in new
    )
    assert new.startswith("import functools\n\nimport jax\n")


def test_flags_are_told_by_their_defaults():
    text = CALL.replace("def block(p, x)", "def block(p, x, train=False, scale=1.0)").replace(
        "block(p, x)  #", "block(p, x, t, s)  #"
    )
    new = one(text, "block(p, x, t, s)", "block")
    assert "x = jax.checkpoint(block, static_argnums=(2,))(p, x, t, s)" in new
    text = CALL.replace("def loss(ps, x)", "def loss(ps, x, train=False)").replace(
        "block(p, x)  #", "block(p, x, train)  #"
    )
    new = one(text, "block(p, x, train)", "block")
    assert "x = jax.checkpoint(block, static_argnums=(2,))(p, x, train)" in new
    text = LINEN.replace(
        "(self, x):\n        return nn", "(self, x, train=False):\n        return nn"
    )
    text = text.replace("Block()(x + 1)", "Block()(x, t)")
    new = one(text, "Block()(x, t)", "Block.__call__")
    assert "return nn.remat(Block.__call__, static_argnums=(2,))(Block(), x, t)" in new


def test_two_calls_on_one_line_are_told_apart_by_column():
    text = "import jax\n\n\ndef loss(p, q, x):\n    return f(p, x) + g(q, f(q, x))\n"
    new = one(text, "g(q", "g")
    assert "f(p, x) + jax.checkpoint(g)(q, f(q, x))" in new
    inner = one(text, "f(q", "f")
    assert "f(p, x) + g(q, jax.checkpoint(f)(q, x))" in inner


def test_without_a_column_the_name_tells():
    row, _ = place(CALL, "block(p, x)  #")
    known = Location("model.py", row, None, "loss", "")
    given = PlannedSite("call", "block", known, 1, 1, (part(),), True)
    assert "jax.checkpoint(block)(p, x)" in edited(CALL, given)


def test_two_calls_of_a_function_on_one_line_cannot_be_told_without_a_column():
    text = "import jax\n\n\ndef loss(p, x):\n    return f(p, x) + f(x, p)\n"
    given = PlannedSite("call", "f", Location("model.py", 5, None, "loss"), 2, 2, (part(),), True)
    assert refused(text, given) == [
        "model.py:5: cannot tell from the line which call of f is meant"
    ]


def test_some_calls_of_several_are_told_by_the_number_of_the_round():
    parts = part(calls=20), part("dots_saveable", calls=8), part(checkpointed=False, calls=20)
    chosen = f"""(
            jax.checkpoint(block)
            if i < 20
            else jax.checkpoint(block, {DOTS})
            if i < 28
            else block
        )"""
    new = edited(CALL, site("call", CALL, "block(p, x)  #", "block", *parts, calls=48))
    assert new == CALL.replace("for p in ps", "for i, p in enumerate(ps)").replace(
        "x = block(p, x)", f"x = {chosen}(p, x)"
    )
    halves = part(calls=2), part(checkpointed=False, calls=2)
    written = "(jax.checkpoint(block) if {} < 2 else block)(p, x)  #"
    for loop, new_loop, number in (
        ("for i, p in enumerate(ps)", "for i, p in enumerate(ps)", "i"),
        ("for p in range(4)", "for p in range(4)", "p"),
        ("for p, i in zip(ps, x)", "for n, (p, i) in enumerate(zip(ps, x))", "n"),
        ("for (p, _) in zip(ps, x)", "for i, (p, _) in enumerate(zip(ps, x))", "i"),
    ):
        text = CALL.replace("for p in ps", loop)
        expected = text.replace(loop, new_loop).replace("block(p, x)  #", written.format(number))
        assert edited(text, site("call", text, "block(p, x)  #", "block", *halves)) == expected


def test_some_calls_of_a_checkpoint_only():
    parts = part(calls=2), part(checkpointed=False, calls=2)
    given = site("checkpoint", CHECKPOINT, "jax.checkpoint(block)", "block", *parts, calls=4)
    assert edited(CHECKPOINT, given) == CHECKPOINT.replace(
        "for p in ps", "for i, p in enumerate(ps)"
    ).replace("jax.checkpoint(block)", "(jax.checkpoint(block) if i < 2 else block)")


def test_some_calls_without_a_loop_are_left_to_the_user():
    text = CALL.replace("    for p in ps:\n        x = block(p, x)", "    x = block(ps, x)")
    parts = part(calls=2), part(checkpointed=False, calls=2)
    (reason,) = refused(text, site("call", text, "block(ps, x)  #", "block", *parts, calls=4))
    assert reason.startswith("model.py:9: cannot tell which call this is: there is no loop around")


def test_parts_that_are_alike_are_one():
    parts = part(calls=2), part(calls=3)
    new = one(CALL, "block(p, x)  #", "block", *parts)
    assert new.count("jax.checkpoint(block)(p, x)") == 1


# -- modules of libraries ------------------------------------------------------------------------

EQUINOX = (
    "import equinox as eqx\nimport jax\n\n\nclass Block(eqx.Module):\n    w: jax.Array\n\n"
    "    def __call__(self, x):\n        return self.w @ x\n\n\n"
    "def run(blocks, x):\n    for block in blocks:\n        x = block(x, 3)\n    return x\n"
)
NNX = (
    "from flax import nnx\n\n\nclass Block(nnx.Module):\n    def __call__(self, x):\n"
    "        return x\n\n    def attend(self, x):\n        return x\n\n\n"
    "def run(blocks, x):\n    for block in blocks:\n        x = block(x)\n"
    "        x = block.attend(x)\n    return x\n"
)
LINEN = (
    "import flax.linen as nn\n\n\nclass Block(nn.Module):\n    @nn.compact\n"
    "    def __call__(self, x):\n        return nn.Dense(4)(x)\n\n\n"
    "class Model(nn.Module):\n    def setup(self):\n"
    "        self.blocks = [Block() for _ in range(3)]\n        self.last = Block()\n\n"
    "    def __call__(self, x):\n        for block in self.blocks:\n            x = block(x)\n"
    "        return self.last(x)\n\n\n"
    "class Compact(nn.Module):\n    @nn.compact\n    def __call__(self, x):\n"
    '        x = Block(name="first")(x)\n        return Block()(x + 1)\n'
)


HAIKU = EQUINOX.replace("equinox as eqx", "haiku as hk").replace("eqx.Module", "hk.Module")


def test_equinox_modules_are_filtered():
    new = one(EQUINOX, "block(x, 3)", "Block.__call__", part("dots_saveable"))
    expected = f"x = eqx.filter_checkpoint(block, policy={P}.dots_saveable)(x, 3)"
    assert new == EQUINOX.replace("x = block(x, 3)", expected)


def test_nnx_modules_are_given_as_arguments():
    new = one(NNX, "block(x)", "Block.__call__", part("dots_saveable"))
    assert f"x = nnx.remat(Block.__call__, policy={P}.dots_saveable)(block, x)\n" in new
    assert new.startswith("import jax\nfrom flax import nnx\n")
    new = one(NNX, "block.attend(x)", "Block.attend")
    assert new == NNX.replace("block.attend(x)", "nnx.remat(Block.attend)(block, x)")
    text = NNX.replace("block(x)", "block(x, True)")
    new = one(text, "block(x, True)", "Block.__call__")
    remat = "nnx.remat(Block.__call__, static_argnums=(2,))(block, x, True)"
    assert new == text.replace("block(x, True)", remat)


@pytest.mark.parametrize(
    ("text", "call", "remat", "fun", "called"),
    [
        (EQUINOX, "block(x, 3)", "eqx.filter_checkpoint", "block", "(x, 3)"),
        (HAIKU, "block(x, 3)", "hk.remat", "block", "(x, 3)"),
        (NNX, "block(x)", "nnx.remat", "Block.__call__", "(block, x)"),
        (LINEN, "block(x)", "nn.remat", "Block.__call__", "(block, x)"),
    ],
)
def test_some_calls_of_a_module(text, call, remat, fun, called):
    parts = part(calls=2), part("dots_saveable"), part(checkpointed=False, calls=3)
    new = one(text, call, "Block.__call__", *parts)
    assert "    for i, block in enumerate(" in new
    with_policy = f"{remat}({fun}, policy={P}.dots_saveable) if i < 3"
    chosen = f"{remat}({fun}) if i < 2 else {with_policy} else {fun}"
    assert f"x = ( {chosen} ){called}" in " ".join(new.split())


def test_nnx_modules_of_a_class_that_is_elsewhere():
    text = NNX.replace("class Block", "class Other").replace("x = block(x)", "x = block[0](x)")
    sys.modules["elsewhere"] = module = type(sys)("elsewhere")
    base = type("Module", (), {"__module__": "flax.nnx.module"})
    module.__file__ = os.path.abspath("elsewhere.py")
    module.Zeppelin = type("Zeppelin", (base,), {"__module__": "elsewhere"})
    try:
        new = one(text, "block[0](x)", "Zeppelin.__call__")
    finally:
        del sys.modules["elsewhere"]
    assert "x = nnx.remat(type(block[0]).__call__)(block[0], x)\n" in new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = block(x)", "x = nn.remat(Block.__call__)(block, x)"),
        ("return self.last(x)", "return nn.remat(Block.__call__)(self.last, x)"),
        (
            'x = Block(name="first")(x)',
            'x = nn.remat(Block.__call__)(Block(name="first"), x)',
        ),
        ("return Block()(x + 1)", "return nn.remat(Block.__call__)(Block(), x + 1)"),
        (
            "return Block()(x + 1, True, h, act='relu')",
            "return nn.remat(functools.partial(Block.__call__, act='relu'), static_argnums=(2,))"
            "(Block(), x + 1, True, h)",
        ),
        ("return Block()(\n            x\n        )", None),
    ],
)
def test_linen_modules_keep_the_names_of_their_parameters(old, new):
    text = LINEN.replace("import flax", "import functools\n\nimport flax")
    if "Block()(" in old:
        text = text.replace("return Block()(x + 1)", old)
    new = new or old.replace(
        "Block()(\n            x", "nn.remat(Block.__call__)(Block(), \n            x"
    )
    snippet = old.partition(" ")[2].removeprefix("= ")
    assert one(text, snippet, "Block.__call__") == text.replace(old, new)


@pytest.mark.parametrize(
    ("call", "remat"),
    [
        (
            "block(x, train=True)",
            "nnx.remat(lambda block, x: block(x, train=True), {})(block, x)",
        ),
        (
            "blocks[0](x * 2, 3, mask=x[0], train=False)",
            "nnx.remat(lambda arg0, arg1, arg2: arg0(arg1, 3, mask=arg2, train=False), {})"
            "(blocks[0], x * 2, x[0])",
        ),
    ],
)
def test_what_nnx_modules_are_given_by_name_is_no_argument(call, remat):
    text = NNX.replace("block(x)", call)
    new = one(text, call, "Block.__call__", part("dots_saveable"))
    assert f"x = {remat.format(f'policy={P}.dots_saveable')}\n" in new


@pytest.mark.parametrize(
    ("text", "call", "function", "why"),
    [
        (
            NNX.replace("block(x)", "block(*x, train=True)"),
            "block(*x, train",
            "Block.__call__",
            "nnx.remat takes constants by position only: pass train by position",
        ),
        (CALL, "block(p, x)  #", "Nowhere.__call__", "which library the module Nowhere.__call__"),
        (LINEN.replace("Block()(x", "made()(x"), "made()(x + 1", "Block.__call__", "by hand"),
    ],
)
def test_modules_left_to_the_user(text, call, function, why):
    (reason,) = refused(text, site("call", text, call, function, part()))
    assert why in reason


# -- loops -----------------------------------------------------------------------------------------

SCAN = (
    "from jax import lax\nimport jax.numpy as jnp\n\n\n"
    "def loss(ws, x):\n    def body(c, w):\n        return jnp.tanh(c @ w), None\n\n"
    "    return lax.scan(body, x, ws)[0].sum()\n"
)


def loop(text, call, function="body", *parts):
    return edited(text, site("scan", text, call, function, *(parts or (part(),))))


def test_the_body_of_a_scan_is_wrapped():
    assert loop(SCAN, "lax.scan(body") == SCAN.replace(
        "lax.scan(body,", "lax.scan(jax.checkpoint(body, prevent_cse=False),"
    ).replace("from jax import lax", "import jax\nfrom jax import lax")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)",
            "lax.scan(jax.checkpoint(lambda c, w: (jnp.tanh(c @ w), None), prevent_cse=False),"
            " x, ws)",
        ),
        (
            "lax.scan(f=body, init=x, xs=ws)",
            "lax.scan(f=jax.checkpoint(body, prevent_cse=False), init=x, xs=ws)",
        ),
        (
            "lax.fori_loop(0, 3, body, x)",
            "lax.fori_loop(0, 3, jax.checkpoint(body, prevent_cse=False), x)",
        ),
        ("lax.map(body, ws)", "lax.map(jax.checkpoint(body, prevent_cse=False), ws)"),
        (
            "lax.scan(\n        functools.partial(body, 3),\n        x,\n        ws,\n    )",
            "lax.scan(\n        jax.checkpoint(functools.partial(body, 3), prevent_cse=False),\n"
            "        x,\n        ws,\n    )",
        ),
    ],
)
def test_ways_to_loop(old, new):
    text = SCAN.replace("lax.scan(body, x, ws)", old).replace("from jax", "import jax\nfrom jax")
    assert loop(text, old.partition("(")[0]) == text.replace(old, new)


def test_two_loops_on_one_line():
    text = SCAN.replace(
        "    return lax.scan(body, x, ws)[0].sum()",
        "    return lax.scan(body, x, ws)[0] + lax.scan(step, x, ws)[0]",
    )
    assert "+ lax.scan(jax.checkpoint(step, prevent_cse=False), x" in loop(
        text, "lax.scan(step", "step"
    )


def test_two_loops_on_one_line_without_a_column():
    text = SCAN.replace("body, x, ws)[0]", "body, x, ws)[0] + lax.scan(step, x, ws)[0]")
    given = PlannedSite("scan", "step", Location("model.py", 9, None, "f"), 1, 1, (part(),), True)
    new = edited(text, given)
    assert "lax.scan(body, x, ws)[0] + lax.scan(jax.checkpoint(step, prevent_cse=False)," in new


def test_loops_of_libraries_are_left_to_the_user():
    text = (
        "from flax import nnx\n\n\ndef loss(f, x, ws):\n    return nnx.scan(f, length=3)(x, ws)\n"
    )
    (reason,) = refused(text, site("scan", text, "nnx.scan", "f", part()))
    assert reason == "model.py:5: no jax.lax.scan; checkpoint the body f of this loop by hand"


# -- checkpoints that are there ----------------------------------------------------------------

CHECKPOINT = CALL.replace("x = block(p, x)", "x = jax.checkpoint(block)(p, x)")
DECORATED = CALL.replace("def block", "@jax.checkpoint\ndef block")


def change(text, call, *parts, function="block", **more):
    given = site("checkpoint", text, call, function, *(parts or (part("dots_saveable"),)), **more)
    return edited(text, given)


DOTS = f"policy={P}.dots_saveable"
OTHER = f"policy={P}.nothing_saveable"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("jax.checkpoint(block)(p, x)", f"jax.checkpoint(block, {DOTS})(p, x)"),
        (
            "jax.remat(block, prevent_cse=False)(p, x)",
            f"jax.remat(block, prevent_cse=False, {DOTS})(p, x)",
        ),
        (f"jax.checkpoint(block, {OTHER})(p, x)", f"jax.checkpoint(block, {DOTS})(p, x)"),
        ("jax.checkpoint(\n            block,  # it\n        )(p, x)", None),
        ("layer(p, x)", None),
        ("jax.jit(jax.checkpoint(block))(p, x)", f"jax.jit(jax.checkpoint(block, {DOTS}))(p, x)"),
        (
            "jax.checkpoint(lambda p, x: p @ x)(p, x)",
            f"jax.checkpoint(lambda p, x: p @ x, {DOTS})(p, x)",
        ),
    ],
)
def test_a_policy_is_set(old, new):
    text = CALL.replace("block(p, x)  #", f"{old}  #")
    if old.startswith("layer"):
        text = text.replace("    for p", "    layer = jax.checkpoint(block)\n    for p")
        expected = text.replace("jax.checkpoint(block)", f"jax.checkpoint(block, {DOTS})")
    elif new is None:
        expected = text.replace("block,  # it\n", f"block,  # it\n            {DOTS},\n")
    else:
        expected = text.replace(old, new)
    function = "<lambda>" if "lambda" in old else "block"
    found = change(text, old, function=function)
    if new is None and "# it" in old:  # where a comment ends the line, the keyword follows it
        assert ast.unparse(ast.parse(found)) == ast.unparse(ast.parse(expected))
        assert "# it\n" in found
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@jax.checkpoint", f"@functools.partial(jax.checkpoint, {DOTS})"),
        (
            "@functools.partial(jax.remat, prevent_cse=False)",
            f"@functools.partial(jax.remat, prevent_cse=False, {DOTS})",
        ),
        (
            f"@functools.partial(jax.checkpoint, {OTHER})",
            f"@functools.partial(jax.checkpoint, {DOTS})",
        ),
        ("@nnx.remat", f"@nnx.remat({DOTS})"),
        ("@nnx.remat(prevent_cse=False)", f"@nnx.remat(prevent_cse=False, {DOTS})"),
        ("@nn.remat", f"@functools.partial(nn.remat, {DOTS})"),
        ("@jax.jit\n@jax.checkpoint", f"@jax.jit\n@functools.partial(jax.checkpoint, {DOTS})"),
    ],
)
def test_a_policy_is_set_on_a_decorator(old, new):
    text = CALL.replace("def block", f"{old}\ndef block").replace(
        "import jax\n", "import functools\n\nimport jax\nfrom flax import linen as nn, nnx\n"
    )
    assert change(text, "block(p, x)  #") == text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"jax.checkpoint(block, {OTHER})(p, x)", "jax.checkpoint(block)(p, x)"),
        (
            f"jax.checkpoint(block, {OTHER}, prevent_cse=False)(p, x)",
            "jax.checkpoint(block, prevent_cse=False)(p, x)",
        ),
        ("jax.checkpoint(block)(p, x)", "jax.checkpoint(block)(p, x)"),
    ],
)
def test_a_policy_is_taken_away(old, new):
    text = CALL.replace("block(p, x)  #", f"{old}  #")
    assert change(text, old, part()) == text.replace(old, new)


def test_a_partial_that_binds_nothing_is_taken_away_with_its_policy():
    text = CALL.replace("def block", f"@functools.partial(jax.checkpoint, {OTHER})\ndef block")
    assert "\n@jax.checkpoint\ndef block" in change(
        text.replace("import jax\n", "import functools\nimport jax\n"),
        "block(p, x)  #",
        part(),
    )


@pytest.mark.parametrize("text", [CHECKPOINT, DECORATED])
def test_a_checkpoint_is_removed(text):
    call = "jax.checkpoint(block)(p" if text is CHECKPOINT else "block(p, x)  #"
    assert change(text, call, REMOVED) == CALL


def test_a_checkpoint_of_a_default_argument_is_found_by_its_name():
    text = CALL.replace("def loss(ps, x)", "def loss(ps, x, layer=block)").replace(
        "x = block(p, x)", "x = layer(p, x)"
    )
    text += "\n\ndef loss_remat(ps, x):\n    return loss(ps, x, jax.checkpoint(block))\n"
    new = change(text, "layer(p, x)  #")
    assert new == text.replace("jax.checkpoint(block)", f"jax.checkpoint(block, {DOTS})")


def test_a_checkpoint_in_another_file(monkeypatch):
    blocks = "import jax\n\n\n@jax.checkpoint\ndef block(p, x):\n    return p @ x\n"
    text = "from blocks_apart import block\n\n\ndef loss(p, x):\n    return block(p, x)\n"
    Path("blocks_apart.py").write_text(blocks)
    Path("blocks_other.py").write_text(blocks)
    Path("model.py").write_text(text)
    monkeypatch.syspath_prepend(os.getcwd())
    __import__("blocks_apart")
    __import__("blocks_other")
    try:
        given = site("checkpoint", text, "block(p, x)\n", "block", REMOVED)
        (edit,) = edits(plan(given), subject())
    finally:
        del sys.modules["blocks_apart"], sys.modules["blocks_other"]
    assert edit.display_path == "blocks_apart.py"
    assert edit.new.decode() == blocks.replace("@jax.checkpoint\n", "")


def test_two_checkpoints_that_may_be_meant():
    text = CALL.replace("x = block(p, x)", "x = choose()(p, x)") + (
        "\n\na = jax.checkpoint(block)\nb = jax.checkpoint(block, prevent_cse=False)\n"
    )
    (reason,) = refused(text, site("checkpoint", text, "choose()(p", "block", part(NAMES)))
    assert reason == (
        "model.py:10: cannot tell which checkpoint of block is meant (model.py:14,"
        " model.py:15); change it by hand"
    )


def test_one_checkpoint_of_two_calls_that_are_planned_differently():
    text = DECORATED.replace("return x.sum()", "return block(ps[0], x).sum()")
    first = site("checkpoint", text, "block(p, x)  #", "block", part("dots_saveable"))
    other = site("checkpoint", text, "block(ps[0]", "block", part(), changed=False)
    (reason,) = refused(text, first, other)
    assert "serves several calls" in reason
    both = [dataclasses.replace(s, parts=(REMOVED,), changed=True) for s in (first, other)]
    assert edited(text, *both) == text.replace("@jax.checkpoint\n", "")


SHARED = CALL.replace(
    "def loss(", f"ckpt = functools.partial(jax.checkpoint, {OTHER})\n\n\ndef loss("
).replace("import jax\n", "import functools\n\nimport jax\n")


def test_a_policy_that_several_checkpoints_share():
    text = SHARED.replace("block(p, x)  #", "ckpt(block)(p, ckpt(f)(x))  #")
    new = change(text, "ckpt(block)")
    assert new == text.replace("ckpt(block)", f"ckpt(block, {DOTS})")
    new = change(text, "ckpt(block)", part())
    assert new == text.replace("ckpt(block)", "ckpt(block, policy=None)")
    alone = SHARED.replace("block(p, x)  #", "ckpt(block)(p, x)  #")
    assert change(alone, "ckpt(block)") == alone.replace(OTHER, DOTS)


@pytest.mark.parametrize(
    ("old", "why"),
    [
        (
            "jax.checkpoint(block, **options)(p, x)",
            "not all arguments of this checkpoint are visible",
        ),
        ("jax.checkpoint(block, **{'policy': None})(p, x)", "comes from a dictionary"),
        ("keras.remat(block)(p, x)", "takes no policy"),
        ("other(block)(p, x)", "no checkpoint of block was found"),
    ],
)
def test_checkpoints_left_to_the_user(old, why):
    text = CALL.replace("block(p, x)  #", f"{old}  #").replace(
        "import jax\n", "import jax, keras\n"
    )
    (reason,) = refused(text, site("checkpoint", text, old, "block", part("dots_saveable")))
    assert reason.startswith("model.py:10: ") and why in reason


def test_a_checkpoint_is_followed_to_what_made_the_module():
    text = LINEN.replace("[Block() for _", "[nn.remat(Block)() for _").replace(
        "        return self.last(x)",
        "        last = nn.remat(Block, prevent_cse=False)()\n        return last(x)",
    )
    new = change(text, "last(x)", part(), function="core_fn")
    assert new == text
    new = change(text, "last(x)", function="core_fn")
    assert f"nn.remat(Block, prevent_cse=False, {DOTS})()\n" in new
    assert "[nn.remat(Block)() for _" in new


def test_a_name_is_better_than_a_librarys_wrapper():
    text = CALL.replace("x = block(p, x)", "x = choose()(p, x)").replace(
        "import jax\n", "import equinox as eqx\nimport jax\n"
    )
    text += "\n\na = jax.checkpoint(block)\nb = eqx.filter_checkpoint(f)\nc = jax.checkpoint(g)\n"
    new = change(text, "choose()(p")
    assert new == text.replace("jax.checkpoint(block)", f"jax.checkpoint(block, {DOTS})")
    new = change(text, "choose()(p", function="fun_checkpoint")
    assert new == text.replace("filter_checkpoint(f)", f"filter_checkpoint(f, {DOTS})")


def test_linen_checkpoints():
    text = LINEN.replace('Block(name="first")', "nn.remat(Block, policy=p)()")
    call = "nn.remat(Block"
    new = change(text, call, function="core_fn")
    assert new == text.replace("policy=p", DOTS).replace(
        "import flax.linen as nn\n", "import flax.linen as nn\nimport jax\n"
    )
    (reason,) = refused(text, site("checkpoint", text, call, "core_fn", REMOVED))
    assert "other names" in reason


# -- the whole target ----------------------------------------------------------------------------

WHOLE = (
    '"""Module."""\nimport jax\n\n\ndef outer():\n\t@jax.jit\n\tdef loss(w, n: int, x: int = 1):\n'
    "\t\treturn w\n\n\treturn loss\n\n\ndef plain(w):\n    return w\n\n\n"
    "class Model:\n    def loss(self, w):\n        return w\n"
)


def whole(policy=None, function="loss"):
    return PlannedSite("whole", function, None, 1, 1, (part(policy),), True)


def loaded(text, *path):
    """Something of a module, as the target of a plan."""
    Path("model.py").write_text(text)
    space = {}
    exec(compile(text, str(Path("model.py").absolute()), "exec"), space)
    found = space[path[0]]
    for name in path[1:]:
        found = getattr(found, name)
    return found


def test_a_decorator_goes_next_to_the_function():
    assert edited(WHOLE, whole(), fun=loaded(WHOLE, "plain")) == WHOLE.replace(
        "def plain", "@jax.checkpoint\ndef plain"
    )
    new = edited(WHOLE, whole("dots_saveable"), fun=loaded(WHOLE, "outer")())
    assert new == WHOLE.replace(
        "\tdef loss(w, n",
        f"\t@functools.partial(jax.checkpoint, {DOTS}, static_argnums=(1,))\n\tdef loss(w, n",
    ).replace("import jax\n", "import functools\n\nimport jax\n")


def test_what_is_no_function_is_left_to_the_user():
    method = loaded(WHOLE, "Model")().loss
    assert "is a method" in refused(WHOLE, whole(), fun=method)[0]
    made = loaded("f = lambda x: x\n", "f")
    assert "not a plain function" in refused("f = lambda x: x\n", whole(), fun=made)[0]


# -- names -----------------------------------------------------------------------------------------

NAMED = (
    '"""A block."""\n\nfrom __future__ import annotations\n\nimport jax\nimport jax.numpy as jnp\n'
    "from jax.sharding import Mesh\n\n\ndef block(p, x):\n    h = jnp.tanh(x @ p[0])  # up\n"
    "    h = jnp.sin(\n        h + 1,  # one\n    ) * 2\n    y = (h @ p[1]  # down\n         + x)\n"
    "    return -jnp.cos(y @ p[2]); # π\n\n\n"
    "def loss(p, x):\n    return jax.checkpoint(block)(p, x).sum()\n"
)


def naming(text, *pairs, call="jax.checkpoint(block)(p", names=None):
    listed = ", ".join(repr(n) for n in names or [n for _, n in pairs])
    values = [value(text, snippet, name) for snippet, name in pairs]
    return edited(
        text,
        site("checkpoint", text, call, "block", part(f"save_only_these_names({listed})", *values)),
    )


def test_an_expression_is_named_with_its_import_in_order():
    new = naming(NAMED, ("x @ p[0]", "up"))
    assert new == NAMED.replace("x @ p[0]", 'checkpoint_name(x @ p[0], "up")').replace(
        "from jax.sharding", "from jax.ad_checkpoint import checkpoint_name\nfrom jax.sharding"
    ).replace(
        "jax.checkpoint(block)",
        f'jax.checkpoint(block, policy={P}.save_only_these_names("up"))',
    )


def test_expressions_in_expressions_on_one_line_and_over_several():
    new = naming(
        NAMED,
        ("jnp.tanh(x @ p[0])", "tanh"),
        ("x @ p[0]", "up"),
        ("jnp.sin(\n        h + 1,  # one\n    )", "sin"),
        ("jnp.sin(\n        h + 1,  # one\n    ) * 2", "double"),
        ("h @ p[1]  # down\n         + x", "sum"),
        ("h @ p[1]", "down"),
        ("y @ p[2]", "out"),
        ("-jnp.cos(y @ p[2])", "end"),
    )
    body = new[new.index("    h = ") : new.index("\n\n\ndef loss")]
    assert body == (
        '    h = checkpoint_name(jnp.tanh(checkpoint_name(x @ p[0], "up")), "tanh")  # up\n'
        "    h = checkpoint_name(checkpoint_name(jnp.sin(\n        h + 1,  # one\n"
        '    ), "sin") * 2, "double")\n'
        '    y = (checkpoint_name(checkpoint_name(h @ p[1], "down")  # down\n'
        '         + x, "sum"))\n'
        '    return checkpoint_name(-jnp.cos(checkpoint_name(y @ p[2], "out")), "end"); # π'
    )


def test_expressions_that_end_or_begin_together():
    text = NAMED.replace("h = jnp.tanh(x @ p[0])", "h = x + x @ p[0]")
    new = naming(text, ("x + x @ p[0]", "all"), ("x @ p[0]", "up"))
    assert 'h = checkpoint_name(x + checkpoint_name(x @ p[0], "up"), "all")' in new
    text = NAMED.replace("h = jnp.tanh(x @ p[0])", "h = x @ p[0] + x")
    new = naming(text, ("x @ p[0]", "up"), ("x @ p[0] + x", "all"))
    assert 'h = checkpoint_name(checkpoint_name(x @ p[0], "up") + x, "all")' in new


def test_a_name_for_what_a_named_expression_binds():
    text = NAMED.replace("h = jnp.tanh(x @ p[0])", "h = (u := x @ p[0]) + 1")
    assert 'h = (u := checkpoint_name(x @ p[0], "up")) + 1' in naming(text, ("u := x @ p[0]", "up"))


def test_a_tuple_stays_one_argument():
    text = NAMED.replace("h = jnp.tanh(x @ p[0])", "h, u = x @ p[0], x")
    assert 'h, u = checkpoint_name((x @ p[0], x), "both")' in naming(text, ("x @ p[0], x", "both"))


def test_what_is_named_is_also_what_is_checkpointed():
    text = CALL.replace("x = block(p, x)", "x = x + block(p, x)")
    given = part(NAMES, value(text, "block(p, x)", "qkv", nth=1))
    new = edited(text, site("call", text, "block(p, x)  #", "block", given))
    assert (
        "x = x + checkpoint_name(jax.checkpoint(block,"
        f' policy={P}.save_only_these_names("qkv"))(p, x), "qkv")' in new
    )


def test_a_value_that_has_its_name_already_needs_no_edit():
    text = NAMED.replace("x @ p[0]", 'name(x @ p[0], "up")').replace(
        "import jax\n", "import jax\nfrom jax.ad_checkpoint import checkpoint_name as name\n"
    )
    has = PlannedValue("up", "save", 0, None)
    given = part("save_only_these_names('up', 'out')", has, value(text, "y @ p[2]", "out"))
    new = edited(text, site("checkpoint", text, "jax.checkpoint(block)(p", "block", given))
    assert new.count("import checkpoint_name") == 1
    assert 'jnp.cos(name(y @ p[2], "out"))' in new


def test_offloading():
    policy = (
        "save_and_offload_only_these_names(names_which_can_be_saved=['up'],"
        " names_which_can_be_offloaded=['out'], offload_src='device', offload_dst='pinned_host')"
    )
    new = change(CHECKPOINT, "jax.checkpoint(block)(p", part(policy))
    written = policy.replace("'", '"')
    assert f"jax.checkpoint(block, policy={P}.{written})(p, x)" in new


def test_a_plan_that_was_written_is_not_written_again():
    first = naming(NAMED, ("x @ p[0]", "up"))
    second = naming(
        first,
        ("y @ p[2]", "out"),
        call="jax.checkpoint(block",
        names=["up", "out"],
    )
    assert second.count("import checkpoint_name") == 1
    assert second.count("policy=") == 1
    assert f'{P}.save_only_these_names("up", "out"))' in second


def test_the_quotes_are_those_of_the_file():
    text = NAMED.replace('"""', "'''").replace("# up", "# 'up' it's 'a' 'b'")
    assert "checkpoint_name(x @ p[0], 'up')" in naming(text, ("x @ p[0]", "up"))


@pytest.mark.parametrize(
    ("line", "snippet"),
    [
        ("h = x @ p[0]", "h = x @ p[0]"),
        ("h = x @ p[0]", "@ p[0]"),
        ("h = sum(a for a in x)", "(a for a in x)"),
        ("h = f(*x)", "*x"),
        ("h = x @ p[0]", "h"),
    ],
)
def test_what_is_no_expression_cannot_be_named(line, snippet):
    text = NAMED.replace("h = jnp.tanh(x @ p[0])", line)
    row, column = place(text, line)
    column += line.index(snippet)
    end = column + len(snippet)
    given = PlannedValue("a", "save", 0, Expression("model.py", row, column, row, end, "f", "E"))
    checkpoint = site("checkpoint", text, "jax.checkpoint(block)(p", "block", part(NAMES, given))
    assert refused(text, checkpoint) == [
        f"model.py:{row}: `E` is not an expression of its own in the source; name it by hand"
    ]


def test_one_expression_has_one_name():
    values = [value(NAMED, "x @ p[0]", name) for name in ("a", "b")]
    given = site("checkpoint", NAMED, "jax.checkpoint(block)(p", "block", part(NAMES, *values))
    assert refused(NAMED, given) == [
        "model.py:11: x @ p[0] would need two names, a and b; name it by hand"
    ]


# -- imports ---------------------------------------------------------------------------------------

BODY = "\n\ndef block(p, x):\n    return p @ x\n\n\ndef loss(p, x):\n    return block(p, x)\n"


def header(head, kind="call", policy=None, names=(), body=BODY):
    """The first lines after an edit, and the one with the call."""
    text = head + body
    values = [value(text, "p @ x", name) for name in names]
    given = site(kind, text, "block(p, x)\n", "block", part(policy, *values))
    new = edited(text, given)
    rest = new[: new.index("\n\ndef block")]
    return rest, new.splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("head", "new", "call"),
    [
        ("import jax\n", "import jax\n", "jax.checkpoint"),
        ("import jax as j\n", "import jax as j\n", "j.checkpoint"),
        ("from jax import remat\n", "from jax import remat\n", "remat"),
        ("from jax import checkpoint\n", "from jax import checkpoint\n", "checkpoint"),
        ("import jax.numpy\n", "import jax.numpy\n", "jax.checkpoint"),
        ("import jax.numpy as jnp\n", "import jax\nimport jax.numpy as jnp\n", "jax.checkpoint"),
        ("from jax import numpy as jnp\n", "import jax\nfrom jax import numpy as jnp\n", None),
        ("", "import jax\n", None),
        ('"""Doc."""\n', '"""Doc."""\n\nimport jax\n', None),
        (
            "#!/usr/bin/env python\n# Header.\n",
            "#!/usr/bin/env python\n# Header.\nimport jax\n",
            None,
        ),
        ("import os\n", "import os\n\nimport jax\n", None),
        (
            "import numpy as np\n\nimport jax.numpy as jnp\n",
            "import numpy as np\n\nimport jax\nimport jax.numpy as jnp\n",
            None,
        ),
        ("import os\n\nimport numpy\n", "import os\n\nimport jax\nimport numpy\n", None),
        (
            "from __future__ import annotations\n",
            "from __future__ import annotations\n\nimport jax\n",
            None,
        ),
        (
            "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import jax\n",
            "from typing import TYPE_CHECKING\n\nimport jax\n\nif TYPE_CHECKING:\n    import jax\n",
            None,
        ),
        ("try:\n    import jax\nexcept ImportError:\n    pass\n", None, "jax.checkpoint"),
        ("import numpy; import jax.numpy as jnp\n", None, None),
        ("x = 1\nimport jax\n", "x = 1\nimport jax\n", None),
    ],
)
def test_how_jax_is_imported(head, new, call):
    rest, line = header(head)
    if new is not None:
        assert rest == new
    compile(rest, "", "exec")
    assert line == f"return {call or 'jax.checkpoint'}(block)(p, x)"


def test_aliases_of_policies_are_used():
    head = "import jax\n\ncp = jax.checkpoint_policies\n"
    _, line = header(head, policy=NAMES)
    assert line == 'return jax.checkpoint(block, policy=cp.save_only_these_names("qkv"))(p, x)'
    head = "import jax\nfrom jax.ad_checkpoint import checkpoint_policies as rules\n"
    _, line = header(head, policy="dots_saveable")
    assert line == "return jax.checkpoint(block, policy=rules.dots_saveable)(p, x)"


def test_an_alias_that_comes_later_is_not_used_by_a_decorator():
    text = "import functools\nimport jax\n\n\ndef f(x):\n    return x\n\n\n"
    alias = "cp = jax.checkpoint_policies\n"
    new = edited(text + alias, whole("dots_saveable"), fun=loaded(text + alias, "f"))
    assert f"@functools.partial(jax.checkpoint, {DOTS})\ndef f" in new
    new = edited(
        text.replace("\n\n\ndef", f"\n\n{alias}\n\ndef"),
        whole("dots_saveable"),
        fun=loaded(text.replace("\n\n\ndef", f"\n\n{alias}\n\ndef"), "f"),
    )
    assert "@functools.partial(jax.checkpoint, policy=cp.dots_saveable)\ndef f" in new


def test_names_that_are_taken_are_not_used():
    # By the module: another name for what is imported.
    head = "import jax\n\n\ndef checkpoint_name(x):\n    return x\n"
    rest, _ = header(head, names=["a"], policy="save_only_these_names('a')")
    assert "from jax.ad_checkpoint import checkpoint_name as jax_checkpoint_name\n" in rest
    # By a function around the place: nothing can be imported under that name.
    body = BODY.replace("def loss(p, x)", "def loss(p, x, jax=None)")
    text = f"import jax\n{body}"
    (reason,) = refused(text, site("call", text, "block(p, x)\n", "block", part()))
    assert reason == "model.py:9: cannot import jax here; import and use it by hand"
    # By a local import of the same, which is no obstacle.
    body = BODY.replace("    return block", "    import jax\n\n    return block")
    _, line = header("import jax\n", body=body)
    assert line == "return jax.checkpoint(block)(p, x)"


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("cookie", [None, "latin-1", "cp1251"])
def test_encodings_and_line_ends_stay(newline, bom, cookie):
    if bom and cookie:
        pytest.skip("Python refuses both")
    letter = {"latin-1": "é", "cp1251": "ж"}.get(cookie, "π")
    head = f"# coding: {cookie}\n" if cookie else ""
    text = head + NAMED.replace("π", letter).replace("# up", f"# {letter}").replace(
        "h = jnp.tanh(x @ p[0])", f"h = jnp.tanh(p['{letter}'] @ x)"
    )
    old = bom + text.replace("\n", newline).encode(cookie or "utf-8")
    Path("model.py").write_bytes(old)
    given = part("save_only_these_names('a')", value(text, f"p['{letter}'] @ x", "a"))
    (edit,) = edits(
        plan(site("checkpoint", text, "jax.checkpoint(block)(p", "block", given)), subject()
    )
    new = edit.new.removeprefix(bom).decode(cookie or "utf-8")
    assert edit.new.startswith(bom + head.strip().encode())
    assert new.count("\n") == new.count(newline) == text.count("\n") + 1
    assert f"""checkpoint_name(p['{letter}'] @ x, "a")""" in new
    compile(edit.new, "model.py", "exec")


def test_tabs_and_files_without_a_last_line_end():
    text = CALL.replace("    ", "\t").rstrip()
    new = one(text, "block(p, x)  #", "block")
    assert new == text.replace("x = block", "x = jax.checkpoint(block)")
    bare = "import jax"
    given = part("save_only_these_names('a')")
    Path("model.py").write_text(bare)
    assert refused(
        bare, PlannedSite("call", "f", Location("model.py", 1, 0, ""), 1, 1, (given,), True)
    )


def test_what_is_not_the_users_is_not_written(tmp_path):
    library = tmp_path / "lib" / "site-packages" / "net" / "model.py"
    library.parent.mkdir(parents=True)
    library.write_text(CALL)
    given = site("call", CALL, "block(p, x)  #", "block", part(), file=str(library))
    with pytest.raises(InputsError, match="library code, which is not edited"):
        edits(plan(given), SimpleNamespace(fun=None, frames=Frames(own=(library.parent,))))
    for file, why in [
        ("train.ipynb", "notebooks are not edited"),
        ("/tmp/ipykernel_7/12.py", "notebooks are not edited"),
        ("In[3]", "notebooks are not edited"),
        ("<string>", "does not come from a file"),
        ("gone.py", "cannot be read: No such file"),
    ]:
        given = site("call", CALL, "block(p, x)  #", "block", part(), file=file)
        with pytest.raises(InputsError, match=why):
            edits(plan(given), subject())
    assert library.read_text() == CALL


def test_a_file_that_does_not_parse():
    (reason,) = refused(
        "def f(:\n", PlannedSite("call", "f", Location("model.py", 1, 0, ""), 1, 1, (part(),), True)
    )
    assert reason.startswith("model.py:1: does not parse: ")


def test_everything_that_cannot_be_written_is_said_at_once():
    text = CALL + "\n\ny = block(1, 2)\n"
    sites = [
        site("call", text, "block(p, x)  #", "block", part("my_policy")),
        site("scan", text, "block(1", "body", part()),
        PlannedSite("call", "g", None, 1, 1, (part(),), True),
    ]
    assert refused(text, *sites) == [
        "model.py:10: the policy my_policy is not in jax.checkpoint_policies; write it by hand",
        "model.py:14: no jax.lax.scan; checkpoint the body body of this loop by hand",
        "g: the line where it is called is not known",
    ]


def test_a_link_is_one_file(tmp_path):
    Path("real.py").write_text(CALL)
    os.symlink("real.py", "model.py")
    twice = [
        site("call", CALL, "block(p, x)  #", "block", part(), file=f)
        for f in ("model.py", "real.py")
    ]
    (edit,) = edits(plan(*twice), subject())
    write([edit])
    assert Path("model.py").is_symlink()
    assert Path("real.py").read_text() == CALL.replace("x = block", "x = jax.checkpoint(block)")


def test_a_link_that_leads_out_of_the_project_is_left_alone(tmp_path):
    outside = tmp_path / "outside.py"
    outside.write_text(CALL)
    project = Path("project")
    project.mkdir()
    (project / "pyproject.toml").touch()
    (project / "model.py").symlink_to(outside)
    file = "project/model.py"
    planned = plan(site("call", CALL, "block(p, x)  #", "block", part(), file=file))
    with pytest.raises(InputsError, match="leads out of the project, where nothing is edited"):
        edits(planned, subject())


# -- diff and write --------------------------------------------------------------------------------


def two_files():
    found = []
    for name in ("a.py", "b.py"):
        Path(name).write_text("x = 1\n")
        found.append(FileEdit(Path(name).absolute(), name, b"x = 1\n", b"x = 2"))
    return found


def test_the_diff_is_one_for_git():
    assert diff(two_files()) == "".join(
        f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-x = 1\n+x = 2\n\\ No newline at end of file\n"
        for name in ("a.py", "b.py")
    )


def test_all_files_are_written():
    Path("a.py").touch()
    found = two_files()
    Path("a.py").chmod(0o640)
    write(found)
    assert [Path(n).read_bytes() for n in ("a.py", "b.py")] == [b"x = 2"] * 2
    assert stat.S_IMODE(Path("a.py").stat().st_mode) == 0o640


def test_or_none():
    found = two_files()
    Path("b.py").write_text("x = 3\n")
    with pytest.raises(JaxresidError, match=r"^b.py changed during planning"):
        write(found)
    assert [Path(n).read_text() for n in ("a.py", "b.py")] == ["x = 1\n", "x = 3\n"]
    found = [*two_files(), FileEdit(Path("no/c.py"), "no/c.py", b"", b"x")]
    with pytest.raises(JaxresidError, match=r"^cannot write no/c.py: No such file"):
        write(found)
    assert [Path(n).read_text() for n in ("a.py", "b.py")] == ["x = 1\n"] * 2


# -- as text ---------------------------------------------------------------------------------------


def test_policies_as_text():
    both = "save_from_both_policies(dots_saveable, save_only_these_names('a', 'b'))"
    assert policy_text(both, "cp", "'") == (
        "cp.save_from_both_policies(cp.dots_saveable, cp.save_only_these_names('a', 'b'))"
    )
    assert policy_text("""save_only_these_names('a"b', 'é')""", "cp") == (
        """cp.save_only_these_names('a"b', "é")"""
    )
    assert policy_text("my_policy", "cp") is None
    assert policy_text("rules:policy", "cp") is None
    assert policy_text("<lambda>", "cp") is None


def code_of(text, *sites, fun=None, name="model.py"):
    Path(name).write_bytes(text.encode())
    return code(edits(plan(*sites), subject(fun)))


def test_the_code_is_lines_of_the_edit():
    """Each with the line that it is for; what is inserted, with what it goes before."""
    given = part(NAMES, value(NAMED, "x @ p[0]", "qkv"))
    assert code_of(NAMED, site("checkpoint", NAMED, "jax.checkpoint(block)", "block", given)) == (
        "from jax.ad_checkpoint import checkpoint_name"
        "  # model.py:7, new, before  from jax.sharding import Mesh",
        'h = jnp.tanh(checkpoint_name(x @ p[0], "qkv"))  # up  # model.py:11',
        f'return jax.checkpoint(block, policy={P}.save_only_these_names("qkv"))(p, x).sum()'
        "  # model.py:21",
    )
    removed = site("checkpoint", DECORATED, "block(p, x)  #", "block", REMOVED)
    assert code_of(DECORATED, removed) == ("# without  @jax.checkpoint  # model.py:4",)


# -- what is written gives what is promised ------------------------------------------------------


def options(target, **more):
    blank = {"inputs": None, "concrete_inputs": False, "arg": (), "kwarg": (), "build": False}
    return Request(target, **{**blank, "argnums": None, "has_aux": False, **more})


def promised(text, target, name):
    """The figures of code that was edited by hand."""
    file = Path(f"{name}.py")
    file.write_text(text)
    report = inspected(options(f"{file}:{target}")).report
    return {
        "peak_nbytes": report.peak.nbytes,
        "kept_nbytes": report.totals.computed_nbytes,
        "host_nbytes": report.totals.host_nbytes,
        "recompute_flops": report.cost.recompute.flops,
        "plain_flops": report.cost.total.flops - report.cost.recompute.flops,
    }


SOURCE = DECODER.read_text()
IMPORT = "import jax\nimport jax.numpy as jnp\nimport numpy as np\n"
WITH_NAME = IMPORT + "from jax.ad_checkpoint import checkpoint_name\n"
SAVING = f'policy={P}.save_only_these_names("qkv", "ctx")'
QKV = ('x @ params["wqkv"]', "qkv")
CTX = ('jnp.einsum("bhts,bshd->bthd", probs, v)', "ctx")


def by_hand(*changes, names=False):
    text = SOURCE
    pairs = [(s, f'checkpoint_name({s}, "{n}")') for s, n in (QKV, CTX)] if names else []
    for old, new in (*changes, *pairs, *([(IMPORT, WITH_NAME)] if names else [])):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def chosen(names=True):
    values = [value(SOURCE, s, n, "decoder.py") for s, n in (QKV, CTX)] if names else []
    return part("save_only_these_names('qkv', 'ctx')" if names else None, *values)


CASES = {
    "call": (
        "loss_fn",
        ("call", "block(params, x)\n    return", "block", chosen()),
        by_hand(
            (
                "        x = block(params, x)\n",
                f"        x = jax.checkpoint(block, {SAVING})(params, x)\n",
            ),
            names=True,
        ),
    ),
    "scan": (
        "loss_scan",
        ("scan", "jax.lax.scan(", "body", chosen()),
        by_hand(
            ("scan(body, x", f"scan(jax.checkpoint(body, prevent_cse=False, {SAVING}), x"),
            names=True,
        ),
    ),
    "checkpoint": (
        "loss_remat",
        ("checkpoint", "block_remat(params, x)\n", "block", chosen()),
        by_hand(
            (
                "jax.checkpoint(block, prevent_cse=True)",
                f"jax.checkpoint(block, prevent_cse=True, {SAVING})",
            ),
            names=True,
        ),
    ),
    "removed": (
        "loss_remat",
        ("checkpoint", "block_remat(params, x)\n", "block", REMOVED),
        by_hand(("jax.checkpoint(block, prevent_cse=True)", "block")),
    ),
    "flag": (
        "loss_flag",
        ("call", "block_with_flag(params, x, True", "block_with_flag", chosen(names=False)),
        by_hand(
            (
                'block_with_flag(params, x, True, activation="relu")',
                "jax.checkpoint(functools.partial("
                'block_with_flag, activation="relu"), static_argnums=(2,))(params, x, True)',
            ),
            ("import dataclasses\n", "import dataclasses\nimport functools\n"),
        ),
    ),
    "whole": (
        "loss_fn",
        ("whole", "def loss_fn", "loss_fn", chosen(names=False)),
        by_hand(("def loss_fn", "@jax.checkpoint\ndef loss_fn")),
    ),
}


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_the_edit_is_as_by_hand_and_gives_its_figures(case):
    target, (kind, call, function, wanted), expected = CASES[case]
    figures = promised(expected, target, f"by_hand_{case}")
    Path("decoder.py").write_text(SOURCE)
    given = options(f"decoder.py:{target}")
    from jaxresid.targets.targets import load

    fun = load(given.target).fun
    sys.modules.pop("decoder")
    made = plan(site(kind, SOURCE, call, function, wanted, file="decoder.py"), **figures)
    found = edits(made, subject(fun))
    assert found[0].new.decode() == expected
    verify(made, found, given)
    assert Path("decoder.py").read_text() == SOURCE


@pytest.mark.integration
def test_a_promise_that_is_not_kept():
    Path("decoder.py").write_text(SOURCE)
    given = options("decoder.py:loss_fn", arg=(), mode="loss", on=("tpu:v5p",))
    as_it_is = inspected(given).report
    sys.modules.pop("decoder")
    figures = {
        "peak_nbytes": as_it_is.peak.nbytes,
        "kept_nbytes": as_it_is.totals.computed_nbytes,
        "plain_flops": as_it_is.cost.total.flops,
    }
    verify(plan(**figures), (), given)
    old = SOURCE.encode()
    path = Path("decoder.py").absolute()
    new = SOURCE.replace("x = block(params", "x = jax.checkpoint(block)(params").encode()
    with pytest.raises(InputsError) as e:
        verify(plan(**figures), [FileEdit(path, "decoder.py", old, new)], given)
    first, *rest = str(e.value).split("\n  ")
    assert first == "the edited code does not give the planned figures; nothing was written"
    assert [line.partition(":")[0] for line in rest][-2:] == ["kept", "recompute"]
    assert f"planned {0} FLOP (0), found" in rest[-1]
    broken = SOURCE.replace("x = block(params", "x = nothing(params").encode()
    with pytest.raises(InputsError, match=r"cannot be traced; nothing was written: .*nothing"):
        verify(plan(**figures), [FileEdit(path, "decoder.py", old, broken)], given)
    with pytest.raises(InputsError, match=r"cannot be traced; nothing was written: .*SystemExit"):
        verify(plan(), [FileEdit(path, "decoder.py", old, b"raise SystemExit(3)\n")], given)


@pytest.mark.integration
def test_the_edited_code_is_imported_in_packages_too():
    """Also where bytecode is cached, the module prints, and a json.py lies about."""
    Path("written_parts").mkdir()
    Path("json.py").write_text("raise ImportError('not this one')\n")
    Path("written_parts/__init__.py").write_text("")
    old = (
        "import os\nimport jax\nimport jax.numpy as jnp\n\nprint('out')\nos.write(1, b'raw')\n\n\n"
        "def block(x):\n    return jnp.sin(jnp.sin(x))\n"
    )
    Path("written_parts/blocks.py").write_text(old)
    text = (
        "from .blocks import block\nimport jax\n\n\ndef loss(x):\n"
        "    return block(block(x)).sum()\n"
    )
    Path("written_parts/model.py").write_text(text)
    given = options("written_parts.model:loss", arg=("f32[64]",))
    for _ in range(2):
        report = inspected(given).report
    edit = FileEdit(
        Path("written_parts/blocks.py").absolute(),
        "written_parts/blocks.py",
        old.encode(),
        old.replace("def block", "@jax.checkpoint\ndef block").encode(),
    )
    same = plan(
        peak_nbytes=report.peak.nbytes,
        kept_nbytes=report.totals.computed_nbytes,
        plain_flops=report.cost.total.flops,
    )
    verify(same, (), given)
    with pytest.raises(InputsError, match=r"kept: planned 1.00 KiB \(1024\), found 256 B \(256\)"):
        verify(same, [edit], given)
