"""The gallery: its commands draw, its pages show what they draw, and its sentences hold."""

import functools
import importlib.util
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import jax
import pytest
from drawing import commands, draw

import jaxresid

GALLERY = Path(__file__).resolve().parent.parent / "docs" / "gallery"
PAGES = sorted(set(GALLERY.glob("*.md")) - {GALLERY / "index.md"})


@functools.cache
def model(name):
    """Return the module of a model of the gallery."""
    library = {"adam": "optax", "flax_nnx": "flax"}.get(name, "jax")
    pytest.importorskip(library)
    if name == "sharded" and len(jax.devices()) < 8:
        pytest.skip("needs eight devices")
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", GALLERY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def report(name, function="loss", argnums=None):
    found = model(name)
    inputs = getattr(found, f"{function}_inputs", None) or found.example_inputs
    return jaxresid.inspect(getattr(found, function), on="gpu:h100", argnums=argnums)(*inputs())


def kept(found, **keys):
    return sum(
        r.nbytes
        for r in found.residuals
        if r.origin.kind == "computed"
        and all(getattr(r.origin.location, key) == value for key, value in keys.items())
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_it_draws(page):
    text = page.read_text()
    drawn = [arguments[arguments.index("-o") + 1] for arguments in commands(page)]
    assert drawn
    assert re.findall(r"!\[[^]]+\]\((.*?)\)", text) == drawn[:-1]
    assert f"]({drawn[-1]})" in text
    (source,) = re.findall(r"{literalinclude} (\S+)", text)
    assert all(arguments[1].startswith(f"{source}:") for arguments in commands(page))
    prose = text.split("```")[0].split("\n", 1)[1]
    assert len(re.findall(r"[.:](?=\s|$)", prose)) >= 3
    assert f"({page.name})" in (GALLERY / "index.md").read_text()


@pytest.mark.integration
def test_every_picture_is_drawn(tmp_path, monkeypatch):
    pytest.importorskip("optax")
    pytest.importorskip("flax")
    if len(jax.devices()) < 8:
        monkeypatch.setattr("drawing.commands", _without_a_mesh)
    here = tmp_path / "gallery"
    shutil.copytree(GALLERY, here, ignore=shutil.ignore_patterns("*.svg", "*.html", "__pycache__"))
    draw(here)
    drawn = {path.name for pattern in ("*.svg", "*.html") for path in here.glob(pattern)}
    meshes = {"sharded.svg", "sharded.html"} if len(jax.devices()) >= 8 else set()
    others = {a[-1] for page in sorted(here.glob("*.md")) for a in _without_a_mesh(page)}
    assert drawn == others | meshes
    for path in here.glob("*.svg"):
        ET.parse(path)


def _without_a_mesh(page):
    yield from (arguments for arguments in commands(page) if "sharded" not in arguments[1])


def test_a_command_that_fails_fails_the_build(tmp_path, capsys):
    (tmp_path / "a.md").write_text("```sh\njaxresid report gone.py:f -o a.svg\n```\n")
    with pytest.raises(RuntimeError, match=r"a\.md: jaxresid report gone\.py:f"):
        draw(tmp_path)
    assert "gone.py" in capsys.readouterr().err


@pytest.mark.integration
class TestSentences:
    """What the pages say of the pictures."""

    def test_gpt(self):
        plain, checkpointed = report("gpt"), report("gpt", "checkpointed")
        assert checkpointed.peak.nbytes < plain.peak.nbytes / 3
        live = [v for v in checkpointed.peak.live if v.aval is not None]
        logits = sum(v.nbytes for v in live if v.aval.shape == (8, 1024, 50304))
        assert logits > checkpointed.peak.nbytes / 2

    def test_resnet(self):
        found = report("resnet")
        norm = kept(found, function="batch_norm")
        assert norm > kept(found) / 2
        computed = [r for r in found.residuals if r.origin.kind == "computed"]
        calls = 1 + 4 * 2 * 2
        images = [r for r in computed if len(r.aval.shape) == 4 and min(r.aval.shape[1:3]) > 1]
        assert sum(r.origin.location.function == "batch_norm" for r in images) == 3 * calls
        first = sum(r.nbytes for r in images if r.aval.shape[1] in (56, 112))
        assert first > kept(found) / 2

    def test_moe(self):
        found = report("moe")
        assert kept(found, function="route") > kept(found, function="experts")
        module = model("moe")
        before, module.layer = module.layer, jax.checkpoint(module.layer)
        try:
            without = jaxresid.inspect(module.loss, on="gpu:h100")(*module.example_inputs())
        finally:
            module.layer = before
        assert kept(without) < kept(found) / 20
        fixed = dict(found.peak.breakdown)["argument"] + dict(found.peak.breakdown)["gradient"]
        assert fixed > found.peak.nbytes / 2

    def test_rnn(self):
        plain, checkpointed = report("rnn"), report("rnn", "checkpointed")
        assert kept(checkpointed) < kept(plain) / 5
        assert {r.trips for r in checkpointed.residuals if r.nbytes > 2**20} <= {1, 2048}
        without = report("rnn", "checkpointed", argnums=0)
        assert without.peak.nbytes < checkpointed.peak.nbytes * 0.75

    def test_adam(self):
        peak = report("adam", "train_step").peak
        parts = dict(peak.breakdown)
        assert peak.phase == "backward"
        assert parts["optimizer-state"] > 1.9 * parts["parameters"]
        assert peak.aliased_nbytes >= parts["optimizer-state"]

    def test_offload(self):
        plain, offloaded = report("offload"), report("offload", "offloaded")
        assert kept(plain, line=22) + kept(plain, function="layer") > plain.peak.nbytes / 2
        assert offloaded.totals.computed_nbytes < plain.totals.computed_nbytes / 50
        assert offloaded.totals.host_nbytes

    def test_flax(self):
        found = report("flax_nnx")
        gelu = kept(found, function="Mlp.__call__")
        assert gelu > kept(found) / 2
        hidden = [
            r
            for r in found.residuals
            if r.origin.kind == "computed" and r.aval.shape == (256, 196, 1536)
        ]
        in_gelu = [r for r in hidden if "up" not in r.origin.scope and "down" not in r.origin.scope]
        assert len(in_gelu) >= 4 * model("flax_nnx").LAYERS
