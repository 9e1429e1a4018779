"""`jaxresid plan --emit`: report, plan, paste what it prints, report again."""

from dataclasses import replace

import pytest

from jaxresid.advice.plan.emit import emitted, maxtext
from jaxresid.advice.plan.emit.emitted import ModuleSettings
from jaxresid.advice.plan.emit.maxtext import MaxTextSettings
from jaxresid.advice.plan.verification import PlanFigures
from jaxresid.base.errors import InputsError
from jaxresid.cli import emit_plan
from jaxresid.cli.options import inputs
from tests.advice.test_writing import plan

MODEL = """\
import jax
import jax.numpy as jnp
from flax import linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(64)(jnp.sin(nn.Dense(1024)(x)))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(3):
            x = Block()(x)
        return x


NET = Net()


def loss_inputs():
    x = jax.ShapeDtypeStruct((512, 64), "float32")
    return jax.eval_shape(NET.init, jax.random.key(0), x), x


def loss(params, x):
    return (NET.apply(params, x) ** 2).sum()
"""
PLAN = ("plan", "model.py:loss", "--on", "tpu:v5e", "--budget")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    pytest.importorskip("flax")
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)


@pytest.mark.integration
def test_report_plan_paste_and_report_again(call, report, tmp_path):
    before = report("model.py:loss", "--on", "tpu:v5e")["totals"]["computed_nbytes"]
    code, out, err = call(*PLAN, "8MiB", "--emit", "linen")
    setting, where = out.rstrip("\n").split("  # ")
    # 1 where the range of the peak reaches beyond the budget, as it does for an older jaxlib.
    assert code in (0, 1)
    assert (setting, where) == ("Block = nn.remat(Block)", "model.py:10, new"), err
    assert "not verified" not in err
    *_, traced, _, renamed = err.splitlines()
    assert renamed.startswith("jaxresid: without a name= of its own a module of a class under")
    (tmp_path / "pasted.py").write_text(
        MODEL.replace("\n\nclass Net", f"\n\n{setting}\n\n\nclass Net")
    )
    after = report("pasted.py:loss", "--on", "tpu:v5e")["totals"]["computed_nbytes"]
    assert after < before / 2
    assert f"traced with these settings: kept {after / 2**10:.2f} KiB" in traced


LIBRARY = """\
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def layer(x, w):
    x = checkpoint_name(x, "decoder_layer_input")
    h = checkpoint_name(jnp.sin(x @ w), "mlpwi")
    return x + checkpoint_name(jnp.tanh(h * h) @ w.T, "mlpwo"), None


def loss(x, ws):
    return jax.lax.scan(jax.checkpoint(layer), x, ws)[0].sum()


def loss_inputs():
    return tuple(jax.ShapeDtypeStruct(s, "float32") for s in ((512, 64), (8, 64, 256)))
"""


@pytest.mark.integration
def test_layers_of_a_library_have_settings_though_nobody_edits_them(call, tmp_path):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "itslayers.py").write_text(LIBRARY)
    words = ("plan", f"{folder}/itslayers.py:loss", "--on", "tpu:v5e", "--budget", "12MiB")
    _, out, err = call(*words, "--emit", "maxtext")
    assert "remat_policy" in out and "'full'" not in out, err
    assert "traced with these settings" in err
    assert "library code, which is not edited" in call(*words)[1].replace("\n", " ")


def shown(monkeypatch, found, unwritten=(), estimate_nbytes=400):
    """What is said of settings that give these figures; nothing is traced."""
    planned = replace(
        plan(
            unwritten=unwritten, doubt="no way", peak_nbytes=400, kept_nbytes=100, plain_flops=1000
        ),
        estimate_nbytes=estimate_nbytes,
    )
    settings = ModuleSettings((), ("the plan differs",), ("a remark",))
    monkeypatch.setattr(emitted, "on_modules", lambda *_: settings)
    monkeypatch.setattr(inputs, "subject_of", lambda _: (None, None))
    monkeypatch.setattr(emit_plan, "figures_of_edited", lambda *_: found)
    return emit_plan.emitted(planned, "linen", None)


@pytest.mark.parametrize("estimate_nbytes", [400, None])
def test_figures_as_planned_verify_the_plan(monkeypatch, estimate_nbytes):
    made = shown(monkeypatch, PlanFigures(400, 100, 0, 0, 1000), estimate_nbytes=estimate_nbytes)
    assert (made.plan.verified, made.plan.doubt, made.fits) == (True, None, True)
    assert made.said == (
        "traced with these settings: kept 100 B, peak about 400 B, 0.0% recomputed, as planned",
        "a remark",
    )


def test_figures_that_print_alike_are_as_planned(monkeypatch):
    made = shown(monkeypatch, PlanFigures(400, 100, 0, 10, 100_000))
    assert made.plan.verified
    assert made.said[0].endswith("0.0% recomputed, as planned")


def test_a_configuration_is_traced_by_its_policy(monkeypatch):
    settings = MaxTextSettings("remat_policy: 'full'\n", lambda *_: False, ())
    monkeypatch.setattr(maxtext, "maxtext_settings", lambda _: settings)
    monkeypatch.setattr(maxtext, "figures_with", lambda *_: PlanFigures(400, 100, 0, 0, 1000))
    monkeypatch.setattr(inputs, "subject_of", lambda _: (None, None))
    planned = replace(plan(peak_nbytes=400, kept_nbytes=100), estimate_nbytes=400)
    made = emit_plan.emitted(planned, "maxtext", None)
    assert (made.text, made.fits) == ("remat_policy: 'full'\n", True)
    assert made.said[1] == (
        "traced with the policy that MaxText makes of them, in place of the present one"
    )


@pytest.mark.parametrize(("unwritten", "diff"), [((), True), (("by hand",), False)])
@pytest.mark.parametrize(("peak", "fits"), [(390, True), (410, False)])
def test_other_figures_are_shown_beside_the_plans(monkeypatch, unwritten, diff, peak, fits):
    made = shown(monkeypatch, PlanFigures(peak, 90, 8, 250, 1000), unwritten)
    assert (made.plan.verified, made.fits) == (False, fits)
    assert made.said == (
        "the plan differs",
        f"traced with these settings: kept 90 B, 8 B in host memory, peak about {peak} B, 25.0%"
        " recomputed",
        "instead of the plan's: kept 100 B, peak about 400 B, 0.0% recomputed"
        + "; --diff has the plan itself" * diff,
        "a remark",
    )


def test_settings_that_cannot_be_traced_are_an_error(monkeypatch):
    with pytest.raises(InputsError, match=r"settings cannot be traced: no\n  the plan differs$"):
        shown(monkeypatch, "no")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--diff",), "--emit prints other code than --diff and --write: choose one"),
        (("--write",), "--emit prints other code than --diff and --write: choose one"),
        (("-f", "json"), "--emit prints code, not json; leave out --format"),
    ],
)
def test_what_it_cannot_be_combined_with(call, given, message):
    code, out, err = call(*PLAN, "8MiB", "--emit", "linen", *given)
    assert (code, out) == (2, "")
    assert message in err
