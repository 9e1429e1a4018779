"""Plans as settings of a framework's modules: what is written, and that it keeps what the same
checkpoints keep where a person puts them at the calls."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import jaxresid
from jaxresid.advice.plan.emit.emitted import on_modules
from jaxresid.advice.plan.emit.modules import OnModules
from jaxresid.advice.plan.source.observed_calls import ArgumentKinds, ObservedCalls
from jaxresid.advice.plan.source.writing import plan_edits
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.report import subject
from tests.advice.test_writing import NAMES, part, site

LINEN = """\
import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        h = checkpoint_name(nn.Dense(64)(x), "qkv")
        return x + nn.Dense(16)(jnp.sin(h) if train else h)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(3):
            x = Block()(x, True)
        return x


NET = Net()


def inputs():
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    return jax.eval_shape(NET.init, jax.random.key(0), x), x


def loss(params, x):
    return NET.apply(params, x).sum()
"""
SCANNED = LINEN.replace(
    """        for _ in range(3):
            x = Block()(x, True)
        return x
""",
    """        axes, rngs = {"params": 0}, {"params": True}
        stack = nn.scan(Body, variable_axes=axes, split_rngs=rngs, length=3)
        return stack()(x, None)[0]


class Body(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return Block()(x, True), None
""",
)
SETUP = "def setup(self):\n        axes"
NNX = """\
import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(16, 64, rngs=rngs)
        self.down = nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, x, train):
        h = checkpoint_name(self.up(x), "qkv")
        return x + self.down(jnp.sin(h) if train else h)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(3)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x, True)
        return x


def inputs():
    return Net(nnx.Rngs(0)), jnp.ones((8, 16))


def loss(net, x):
    return net(x).sum()
"""
EQUINOX = """\
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


class Block(eqx.Module):
    up: jax.Array
    down: jax.Array

    def __call__(self, x, train):
        h = checkpoint_name(x @ self.up, "qkv")
        return x + (jnp.sin(h) if train else h) @ self.down


class Net(eqx.Module):
    blocks: list

    def __call__(self, x):
        for block in self.blocks:
            x = block(x, True)
        return x


def inputs():
    blocks = [Block(jnp.ones((16, 64)), jnp.ones((64, 16))) for _ in range(3)]
    return Net(blocks), jnp.ones((8, 16))


def loss(net, x):
    return net(x).sum()
"""
POLICY = 'policy=jax.checkpoint_policies.save_only_these_names("qkv")'
TREE = jax.tree.structure(((), {}))
SITES = {
    "linen": (LINEN, "call", "Block()(x, True)", "Block.__call__"),
    "nnx": (NNX, "call", "block(x, True)", "Block.__call__"),
    "equinox": (EQUINOX, "call", "block(x, True)", "Block.__call__"),
    "scanned": (SCANNED, "scan", "stack()(x, None)", "body_fn"),
}
BY_HAND = {
    "linen": ("Block()(", f"nn.remat(Block, static_argnums=(2,), {POLICY})()("),
    "nnx": (
        "block(x, True)",
        f"nnx.remat(Block.__call__, static_argnums=2, {POLICY})(block, x, True)",
    ),
    "equinox": ("block(x, True)", f"eqx.filter_checkpoint(block, {POLICY})(x, True)"),
    "scanned": ("nn.scan(Body", f"nn.scan(nn.remat(Body, prevent_cse=False, {POLICY})"),
}
SET = {
    "linen": f"Block = nn.remat(Block, static_argnums=(2,), {POLICY})",
    "nnx": f"    @nnx.remat(static_argnums=(2,), {POLICY})",
    "equinox": f"    @eqx.filter_checkpoint({POLICY})",
    "scanned": f"Body = nn.remat(Body, prevent_cse=False, {POLICY})",
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    pytest.importorskip("flax")
    pytest.importorskip("equinox")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("model", None)


def framework(case):
    return "linen" if case == "scanned" else case


def planned(case, *parts, calls=1):
    text, kind, call, function = SITES[case]
    return text, site(kind, text, call, function, *(parts or (part(NAMES),)), calls=calls)


def emitted(text, *sites, library, train=True):
    """The text with the settings in it, and what writes them; nothing is traced."""
    Path("model.py").write_text(text)
    kinds = ArgumentKinds(("traced", "traced", "static" if train else "traced"))
    keys = [(str(Path("model.py").resolve()), s.location.line, s.function) for s in sites]
    write = OnModules(library)
    seen = ObservedCalls(None, dict.fromkeys(keys, kinds))
    found = plan_edits(sites, SimpleNamespace(fun=None, frames=Frames(), trace=None), seen, write)
    return (found.edits[0].new.decode() if found.edits else text), write, found.problems


def added(text, new):
    return [line for line in new.splitlines() if line and line not in text.splitlines()]


@pytest.mark.parametrize("case", SITES)
def test_the_setting_is_on_the_class_or_its_method(case):
    text, planned_site = planned(case)
    new, _, problems = emitted(text, planned_site, library=framework(case))
    assert (added(text, new), problems) == ([SET[case]], ())


def test_a_linen_class_is_set_right_below_it():
    text, planned_site = planned("linen", part())
    new, *_ = emitted(text, planned_site, library="linen", train=False)
    assert "jnp.sin(h) if train else h)\n\n\nBlock = nn.remat(Block)\n\n\nclass Net" in new


def test_another_method_of_linen_is_named():
    text = LINEN.replace("def __call__(self, x, train)", "def run(self, x, train)")
    text = text.replace("Block()(x, True)", "Block().run(x, True)")
    call = site("call", text, "Block().run(x, True)", "Block.run", part())
    new, *_ = emitted(text, call, library="linen", train=False)
    assert added(text, new) == ['Block = nn.remat(Block, methods=["run"])']


def test_a_call_through_the_class_counts_the_module():
    text = NNX.replace("block(x, True)", "type(block).__call__(block, x, True)")
    call = site("call", text, "type(block).__call__(block", "Block.__call__", part())
    new, *_ = emitted(text, call, library="nnx")
    assert added(text, new) == ["    @nnx.remat(static_argnums=(2,))"]


def test_a_flag_that_is_not_given_is_no_argument():
    text = NNX.replace("block(x, True)", "type(block).__call__(block, x)")
    call = site("call", text, "type(block).__call__(block", "Block.__call__", part())
    new, *_ = emitted(text, call, library="nnx")
    assert added(text, new) == ["    @nnx.remat"]


def test_a_scan_that_is_made_in_setup():
    text = SCANNED.replace("@nn.compact\n    def __call__(self, x):\n        axes", SETUP)
    text = text.replace(
        "        return stack()", "\n    def __call__(self, x):\n        return self.stack"
    )
    text = text.replace("stack = nn.scan(", "self.stack = nn.scan(").replace(
        "length=3)", "length=3)()"
    )
    call = site("scan", text, "self.stack(x, None)", "body_fn", part(NAMES))
    new, *_ = emitted(text, call, library="linen")
    assert added(text, new) == [SET["scanned"]]


def test_of_two_policies_none_is_set():
    text, some = planned("equinox", part(NAMES, calls=2), part(), calls=3)
    new, *_ = emitted(text, some, library="equinox")
    assert added(text, new) == ["    @eqx.filter_checkpoint"]


def test_what_is_no_array_and_named_is_written_at_the_call():
    text = NNX.replace("block(x, True)", "block(x, train=True)")
    call = site("call", text, "block(x, train=True)", "Block.__call__", part())
    Path("model.py").write_text(text)
    kinds = ArgumentKinds(("traced", "traced"), {"train": "static"})
    seen = ObservedCalls(
        None, {(str(Path("model.py").resolve()), call.location.line, call.function): kinds}
    )
    fake = SimpleNamespace(fun=None, frames=Frames(), trace=None)
    write = OnModules("nnx")
    found = plan_edits([call], fake, seen, write)
    remat = "            x = nnx.remat(lambda block, x: block(x, train=True))(block, x)"
    assert added(text, found.edits[0].new.decode()) == [remat]
    assert (list(write.written), found.problems) == ([call], ())


def test_all_calls_are_treated_alike():
    text, some = planned("nnx", part(NAMES, calls=2), part(checkpointed=False), calls=3)
    new, write, _ = emitted(text, some, library="nnx")
    assert added(text, new) == [SET["nnx"]]
    assert write.unsaid == [
        "Block.__call__ is set for all of its 3 calls, of which the plan treats 1 otherwise"
    ]


def test_places_that_differ_are_left_to_the_diff():
    text = NNX.replace("return net(x).sum()", "return net.blocks[0](net(x), True).sum()")
    first = site("call", text, "block(x, True)", "Block.__call__", part(NAMES))
    other = site("call", text, "net.blocks[0](", "Block.__call__", part())
    _, _, problems = emitted(text, first, other, library="nnx")
    assert problems == (
        "model.py:7: the plan differs between the places where this is called, and its setting"
        " cannot; plan --diff writes it at each place",
    )
    new, _, problems = emitted(text, first, first, library="nnx")
    assert (added(text, new), problems) == ([SET["nnx"]], ())


def test_haiku_has_no_such_setting():
    text = NNX.replace("from flax import nnx", "import haiku as hk").replace(
        "nnx.Module", "hk.Module"
    )
    call = site("call", text, "block(x, True)", "Block.__call__", part())
    new, write, _ = emitted(text, call, library="haiku")
    assert added(text, new) == ["            x = hk.remat(block)(x, True)"]
    assert write.written


def traced(text):
    """The kept bytes and the FLOPs of a program's two passes."""
    module = loaded(text)
    report = jaxresid.inspect(module.loss)(*module.inputs())
    return report.totals.computed_nbytes, report.cost.recompute.flops


def loaded(text):
    Path("model.py").write_text(text)
    spec = importlib.util.spec_from_file_location("model", Path("model.py").resolve())
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.integration
@pytest.mark.parametrize("case", SITES)
def test_the_settings_keep_what_checkpoints_by_hand_keep(case):
    text, planned_site = planned(case)
    module = loaded(text)
    traced_as_is = subject(Question(module.loss).of(module.inputs(), {}))
    made = on_modules([planned_site], framework(case), traced_as_is)
    assert not made.unsaid
    assert bool(made.remarks) == (framework(case) == "linen")
    new = made.edits[0].new.decode()
    assert added(text, new) == [SET[case]]
    old, by_hand = BY_HAND[case]
    assert traced(new) == traced(text.replace(old, by_hand))
    assert traced(new) != traced(text)


def test_a_plan_of_another_framework_is_one_line():
    text, planned_site = planned("nnx")
    Path("model.py").write_text(text)
    fake = SimpleNamespace(
        fun=None,
        frames=Frames(),
        trace=SimpleNamespace(arguments=SimpleNamespace(leaves=(), roles=(), treedef=TREE)),
    )
    with pytest.raises(
        InputsError, match=r"^no place of the plan is in a module of linen: model"
    ) as e:
        on_modules([planned_site], "linen", fake)
    assert "\n" not in str(e.value)
    with pytest.raises(InputsError, match=r"^the plan changes nothing$"):
        on_modules([], "linen", fake)
