"""Which results the commands keep for editors."""

import re
import sys
from pathlib import Path

import pytest

from jaxresid.base import user_cache
from jaxresid.serialization.latest import read

MODEL = """import jax, jax.numpy as jnp
from sizes import N


def block(x):
    return jnp.sin(jnp.sin(jnp.sin(x)))


def loss(x):
    x = jax.checkpoint(block)(x)
    return jax.checkpoint(lambda x: x * 2)(block(x)).sum()


def loss_inputs(batch=N):
    return (jnp.ones((batch, 1024)),)


def layer(x, w):
    return jnp.sin(jnp.sin(x @ w))


def deep(x, w):
    for _ in range(4):
        x = layer(x, w)
    return x.sum()


def deep_inputs():
    return jnp.ones((4096, 64)), jnp.ones((64, 64))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("JAXRESID_CACHE_DIR", str(tmp_path / "cache"))
    (work / "model.py").write_text(MODEL)
    (work / "sizes.py").write_text("N = 256\n")
    (work / "pyproject.toml").write_text(
        '[tool.jaxresid]\non = "tpu:v5e"\n'
        '[tool.jaxresid.targets.train]\ntarget = "model.py:loss"\nbatch = [256, 512]\n'
        '[tool.jaxresid.targets.other]\ntarget = "model.py:loss"\n'
        '[tool.jaxresid.targets.deep]\ntarget = "model.py:deep"\n'
    )
    yield work
    for name in ("model", "sizes"):
        sys.modules.pop(name, None)


def kept():
    entries = user_cache.results_folder().glob("*.json")
    found = [each for each in map(read, entries) if each is not None]
    return {(each.head.command, each.head.name): each for each in found}


def test_reports_of_named_targets(call, folder):
    assert call("report", "model.py:loss", "-q")[0] == 0
    assert kept() == {}
    code, out, _ = call("report", "other", "--batch", "64", "-q", "-f", "json")
    assert code == 0
    (found,) = kept().values()
    assert found.result.to_json() == out.strip()
    assert (found.head.folder, found.head.directory) == (str(folder), str(folder))
    assert found.head.words == ("other", "--batch", "64")
    # Also what no line of the result is in.
    mine = {Path(path).name for path in found.sources if Path(path).parent == folder}
    assert mine == {"model.py", "sizes.py", "pyproject.toml"}


def test_findings_of_check(call, folder):
    code, out, _ = call("check", "-q", "-f", "concise")
    assert code == 1
    found = kept()
    sizes = {f"train --batch {size}": size for size in (256, 512)}
    assert found.keys() == {("check", name) for name in (*sizes, "other", "deep")}
    (finding,) = found["check", "train --batch 512"].findings
    assert f"{finding.path}:{finding.span.row}:{finding.span.column + 1}: {finding.code} " in out
    for name, size in sizes.items():
        one = found["check", name]
        assert (one.head.target, one.head.size) == ("train", size)
        assert one.result.residuals[0].aval.shape == (size, 1024)


@pytest.mark.integration
def test_the_edits_of_a_plan(call, folder):
    """They make what `--write` makes; a plan that is written, or does not fit, has none."""
    assert call("plan", "deep", "--budget", "5MiB", "-q")[0] == 1
    assert kept()["plan", "deep"].edits == ()
    call("plan", "deep", "--budget", "10MiB", "-q")
    (edit,) = kept()["plan", "deep"].edits
    assert edit.path == str(folder / "model.py")
    _, _, err = call("plan", "deep", "--budget", "10MiB", "--write")
    assert re.search("model.py written", err)
    assert edit.text == (folder / "model.py").read_text() != MODEL
    assert kept()["plan", "deep"].edits == ()
