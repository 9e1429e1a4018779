"""Errors of our own in the code behind one finding, and what users' code and JAX raise there."""

import dataclasses
import json
import logging

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxresid
from jaxresid import jax_compat
from jaxresid.advice.check import check as checking
from jaxresid.base import crashes
from jaxresid.base.errors import RetraceError
from jaxresid.base.violations import CRASHED_FINDING
from jaxresid.cli.main import run
from jaxresid.inspector.findings import host_memory, registry
from jaxresid.inspector.holes import loss as of_loss
from jaxresid.inspector.holes import open_programs
from jaxresid.inspector.subject import base
from jaxresid.inspector.trace import function as tracing
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.variants.rewrites import effects
from jaxresid.results.display import to_text
from tests.small import f32

L, N, D, V = 4, 1024, 32, 4096
NO_BATCH = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
NAMED = jax.checkpoint_policies.save_only_these_names("hidden")


@jax.custom_vjp
def block(x, w):
    return checkpoint_name(jnp.tanh(x @ w), "hidden")


block.defvjp(lambda x, w: (block(x, w), (x, w)), lambda kept, ct: (ct @ kept[1].T, kept[0].T @ ct))


def loss(ws, x, head):
    """Return a value for which every finding of a function is looked for."""
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)
    x = jax.checkpoint(block, policy=NAMED)(x, ws[0])
    x = jax.vmap(jax.checkpoint(lambda x, w: jnp.tanh(x @ w), policy=NO_BATCH))(x[None], ws[:1])
    logits = (x[0] @ head).astype(jnp.float32)
    return -jnp.mean(jax.nn.log_softmax(logits)[:, 0])


ARGS = f32(L, D, D), jax.ShapeDtypeStruct((N, D), jnp.bfloat16), f32(D, V)
ARGS = tuple(jax.ShapeDtypeStruct(each.shape, jnp.bfloat16) for each in ARGS)


def training_step(params, x):
    gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w)))(params)
    return params - gradient


STEP = f32(256, 256), f32(8, 256)


def on_host(weights, x):
    def body(x, w):
        return jnp.tanh(x @ jax.device_put(w, jax.memory.Space.Device)), None

    return jnp.sum(jax.lax.scan(body, x, weights)[0])


def host_args():
    shape = f32(L, D, D)
    sharding = jax_compat.host_sharding(shape)
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding), f32(N, D)


MESSAGE = "module 'jax' has no attribute 'something'"


def gone(*_, **__):
    raise AttributeError(MESSAGE)


@pytest.fixture
def told():
    """Errors of our own are told of, as users have it."""
    token = crashes.RAISES.set(False)
    yield
    crashes.RAISES.reset(token)


def crashing(monkeypatch, name):
    """Let the search for a finding crash; that about host memory is no registered one."""
    if name == "offload-without-effect":
        monkeypatch.setattr(host_memory, "_without_effect", gone)
        return
    searches = [
        dataclasses.replace(search, run=gone) if name in search.names else search
        for search in registry.registered()
    ]
    assert any(search.run is gone for search in searches)
    monkeypatch.setattr(registry, "registered", lambda: searches)


OF_STEPS = ["missing-donation", "unusable-donation", "moments-without-gradient"]
OF_OTHERS = [
    "gathered-weights-kept",  # over a mesh in `shard_map`
    "vmap-too-wide",
    "activations-left-whole",
]
SEARCHED = [name for search in registry.registered() for name in search.names[:1]]
FUNCTION = [name for name in SEARCHED if name not in (*OF_STEPS, *OF_OTHERS)]


@pytest.mark.parametrize(
    ("name", "fun", "args"),
    [
        *((name, loss, ARGS) for name in (*FUNCTION, "offload-without-effect")),
        *((name, training_step, STEP) for name in OF_STEPS),
    ],
)
def test_a_finding_that_crashes_says_so(name, fun, args, monkeypatch, told):
    crashing(monkeypatch, name)
    report = jaxresid.inspect(fun, on="gpu:h100")(*args)
    (warning,) = report.warnings
    assert name in warning
    assert f"AttributeError: {MESSAGE} (inspector/" in warning
    assert ".py:" in warning
    assert warning in " ".join(to_text(report, 100).split())
    assert json.loads(report.to_json())["warnings"] == [warning]


def test_the_other_findings_are_there(monkeypatch, told):
    whole = jaxresid.inspect(loss, on="gpu:h100")(*ARGS)
    crashing(monkeypatch, "attention-scores-at-peak")
    report = jaxresid.inspect(loss, on="gpu:h100")(*ARGS)
    assert "logits-at-peak" in {each.name for each in whole.findings}
    assert report.findings == whole.findings


def test_it_is_raised_in_tests(monkeypatch):
    crashing(monkeypatch, "logits-at-peak")
    with pytest.raises(AttributeError, match="something"):
        jaxresid.inspect(loss, on="gpu:h100")(*ARGS)


def test_one_error_of_many_findings_is_one_warning(monkeypatch, told):
    monkeypatch.setattr(base, "Rewrites", gone)
    (warning,) = jaxresid.inspect(loss, on="gpu:h100")(*ARGS).warnings
    assert "logits-at-peak" in warning
    assert "needless-loop-state" in warning
    assert warning.count("AttributeError") == 1


def test_check_is_never_silent(monkeypatch, told):
    assert CRASHED_FINDING not in {v.code for v in jaxresid.check(loss, on="gpu:h100")(*ARGS)}
    monkeypatch.setattr(checking, "microbatch_proposals", gone)
    (violation,) = [
        v for v in jaxresid.check(loss, on="gpu:h100")(*ARGS) if v.code == CRASHED_FINDING
    ]
    assert "whole-batch-at-once" in violation.message
    assert violation.severity == "error"


PROGRAM = """\
import jax
import jax.numpy as jnp


def loss(x):  # noqa
    return jnp.sum(jnp.sin(x))


def loss_inputs():
    return (jnp.zeros((64, 64)),)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "program_that_crashes.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return "program_that_crashes.py:loss"


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_check_ends_in_2(form, program, monkeypatch, capsys, told):
    crashing(monkeypatch, "attention-scores-at-peak")
    assert run(["check", program, "--on", "gpu:h100", "--select", "JXR801", "-f", form]) == 2
    out, err = capsys.readouterr()
    assert out.count("attention-scores-at-peak could not be looked for") == 1
    assert "attention" not in err


def test_a_report_of_a_crash_ends_in_0_and_traceback_shows_it(program, monkeypatch, capsys, told):
    crashing(monkeypatch, "attention-scores-at-peak")
    assert run(["report", program, "--on", "gpu:h100"]) == 0
    assert "a bug in jaxresid: attention-scores-at-peak" in capsys.readouterr().out
    assert run(["report", program, "--on", "gpu:h100", "-f", "pprof", "-o", "p.pb.gz"]) == 0
    assert "warning: a bug in jaxresid: attention-scores-at-peak" in capsys.readouterr().err
    assert run(["report", program, "--on", "gpu:h100", "--traceback"]) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "in gone" in err


def test_the_log_level_says_what_was_tried(program, capsys):
    assert run(["report", program, "--on", "gpu:h100", "-q", "--log-level", "info"]) == 0
    assert "jaxresid: info: attention-scores-at-peak: 0 found" in capsys.readouterr().err
    assert run(["report", program, "--on", "gpu:h100", "-q"]) == 0
    assert capsys.readouterr().err == ""
    assert logging.getLogger("jaxresid").level == logging.NOTSET


# -- what is ours, and what is not


def without_vjp(*args):
    with pytest.MonkeyPatch.context() as patched:
        patched.delattr(jax, "vjp")
        return tracing.retrace(*args)


def with_a_malformed_jaxpr(trace, primal):
    jaxpr = jax_compat.open_jaxpr(primal.jaxpr if hasattr(primal, "out_info") else primal)
    cut = jax_compat.with_jaxpr(primal, jaxpr.replace(eqns=jaxpr.eqns[1:]))
    return tracing.retrace(trace, cut)


@pytest.mark.parametrize(
    ("where", "instead", "error"),
    [
        ((effects.Rewrites, "figures"), gone, "AttributeError"),
        ((of_loss, "retrace"), gone, "AttributeError"),
        ((of_loss, "retrace"), without_vjp, "AttributeError"),
        ((of_loss, "retrace"), with_a_malformed_jaxpr, "KeyError"),
        ((effects, "with_shared_layers"), gone, "AttributeError"),
        ((tracing, "as_evaluation"), gone, "AttributeError"),
    ],
)
def test_errors_of_ours_in_a_rewrite_are_told(where, instead, error, monkeypatch, told):
    monkeypatch.setattr(*where, instead)
    (warning,) = jaxresid.inspect(loss, on="gpu:h100")(*ARGS).warnings
    assert "logits-at-peak" in warning
    assert f"{error}: " in warning


def test_errors_of_ours_inside_what_jax_traces_are_told(monkeypatch, told):
    real = of_loss.retrace

    def broken(*args):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(tracing, "is_inexact", gone)
            return real(*args)

    monkeypatch.setattr(of_loss, "retrace", broken)
    (warning,) = jaxresid.inspect(loss, on="gpu:h100")(*ARGS).warnings
    assert "AttributeError" in warning
    assert "inspector/trace/function.py" in warning


class Moody:
    """A policy, a rule or a step that fails once its mood is bad."""

    def __init__(self, fun):
        self.fun, self.is_bad = fun, False

    def __call__(self, *args, **kwargs):
        if self.is_bad:
            raise AttributeError("'Batch' object has no attribute 'labels'")
        return self.fun(*args, **kwargs)


def turning(moody, real):
    def turned(*args, **kwargs):
        moody.is_bad = True
        try:
            return real(*args, **kwargs)
        finally:
            moody.is_bad = False

    return turned


def test_what_the_users_step_raises_is_silent_and_logged(monkeypatch, told, caplog):
    moody = Moody(lambda w, x: training_step(w, x.astype(jnp.float32)))
    monkeypatch.setattr(open_programs, "step_primal", turning(moody, open_programs.step_primal))
    args = f32(256, 256), jax.ShapeDtypeStruct((4096, 256), jnp.bfloat16)
    report = jaxresid.inspect(moody, on="gpu:h100")(*args)
    assert report.target.mode == "program"
    assert report.warnings == ()
    assert (
        "the program without its gradients cannot be traced: AttributeError: 'Batch'" in caplog.text
    )


def test_what_the_users_policy_raises_is_silent_and_logged(monkeypatch, told, caplog):
    moody = Moody(jax.checkpoint_policies.dots_saveable)

    def checkpointed(*args):
        return jax.checkpoint(loss, policy=moody)(*args)

    monkeypatch.setattr(of_loss, "retrace", turning(moody, of_loss.retrace))
    assert jaxresid.inspect(checkpointed, on="gpu:h100")(*ARGS).warnings == ()
    assert "a rewrite cannot be traced: AttributeError: 'Batch'" in caplog.text


def test_what_jax_cannot_differentiate_is_silent():
    x, before = f32(3), jax.config.jax_traceback_filtering
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jax.pure_callback(jnp.sin, x, x))))
    with pytest.raises(RetraceError, match="do not support JVP"), retracing("it"):
        gradient.trace(x)
    assert jax.config.jax_traceback_filtering == before
