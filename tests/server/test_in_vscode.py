"""The extension in VS Code itself, as a person uses it."""

import shutil
import sys

import pytest

pytest.importorskip("pygls", reason="needs pygls, of the extra `server`")
pytest.importorskip("playwright", reason="needs playwright, of the extra `browser`")

from tests.server import vscode

pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium"),
    pytest.mark.skipif(
        vscode.installed() is None,
        reason="needs VS Code: python -m tests.server.vscode .ci/envs/vscode",
    ),
    pytest.mark.skipif(
        not vscode.EXTENSION.exists(), reason="needs the extension: npm run package in its folder"
    ),
]

TRAIN = """import time

import jax
import jax.numpy as jnp


def block(w, x):
    h = jnp.tanh(x @ w)
    return jnp.sin(h) * x


def loss(w, x):
    for _ in range(4):
        x = block(w, x)
    return jnp.sum(jnp.cos(x) ** 2)


def loss_inputs():
    return jnp.zeros((256, 256)), jnp.zeros((4096, 256))


def slow(w, x):
    time.sleep(600)
    return loss(w, x)


wrong = jax.checkpoint(loss, policy=jax.checkpoint_policies.nothing_saveable())
"""
TARGETS = """[tool.jaxresid.targets.train]
target = "train.py:loss"
on = "gpu:h100"

[tool.jaxresid.targets.slow]
target = "train.py:slow"
args = ["f32[256,256]", "f32[4096,256]"]
"""
# It would find nothing, and say so in a file.
PLANTED = '#!/bin/sh\ntouch "$(dirname "$0")/was-run"\n'


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vscode")
    programs = folder / "bin"
    programs.mkdir()
    (programs / "jaxresid").write_text(f'#!/bin/sh\nexec {sys.executable} -m jaxresid "$@"\n')
    (programs / "jaxresid").chmod(0o755)
    home = folder / "home"
    home.mkdir()
    with vscode.served(vscode.installed(), home, programs) as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    with vscode.browser() as browser:
        yield browser


@pytest.fixture
def window(chromium, address, tmp_path_factory):
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    yield vscode.Window(page, address)
    page.screenshot(path=tmp_path_factory.mktemp("window") / "last.png")
    page.close()


@pytest.fixture
def train(tmp_path):
    (tmp_path / "pyproject.toml").write_text(TARGETS)
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    return file


def test_a_person_traces_plans_and_fixes(window, train):
    window.open(train, trusted=True)
    window.wait_for_code("Trace train")

    window.page.locator(".squiggly-error").first.wait_for()
    window.go_to(27, 60)
    window.command("Quick Fix...")
    window.page.get_by_text("Remove the empty parentheses").wait_for()
    window.page.keyboard.press("Enter")
    window.wait_for_code("policy=jax.checkpoint_policies.nothing_saveable)")
    window.page.keyboard.press("Control+s")

    window.lens("Trace slow").click()
    window.page.locator(".statusbar-item", has_text="tracing slow").click()
    window.page.get_by_role("button", name="Cancel").click()
    window.message("tracing slow: stopped")

    window.command("jaxresid: Trace target", ("Target", "train"))
    window.message("train: peak")
    code = window.wait_for_code("more at the peak (", "of all that is kept")
    assert "…" not in code

    window.go_to(9, 8)
    window.command("Show or Focus Hover")
    hover = window.page.locator(".monaco-hover", has_text="MiB")
    hover.first.wait_for()
    assert "f32[4096,256]" in hover.first.inner_text()
    window.page.keyboard.press("Escape")
    window.page.keyboard.press("Escape")

    window.command("jaxresid: Plan to fit", ("Target", "train"), ("Plan to fit: train", "40MiB"))
    window.message("recomputed")
    window.command("jaxresid: Apply last plan of target", ("Target", "train"))
    code = window.wait_for_code("(before the last edit)")
    assert "checkpoint(block" in code


def test_a_workspace_that_is_not_trusted_runs_nothing(window, train):
    planted = train.parent / ".venv" / "bin" / "jaxresid"
    planted.parent.mkdir(parents=True)
    planted.write_text(PLANTED)
    planted.chmod(0o755)
    window.open(train, trusted=False)
    window.page.locator(".squiggly-error").first.wait_for()
    window.page.wait_for_timeout(2000)
    assert "Trace train" not in window.code()
    window.page.keyboard.press("F1")
    window.page.keyboard.type("jaxresid: ")
    rows = window.page.locator(".quick-input-list .monaco-list-row", has_text="jaxresid: ")
    rows.first.wait_for()
    window.page.wait_for_timeout(500)
    found = " ".join(rows.all_inner_texts())
    assert "Restart server" in found
    assert "Trace" not in found and "Plan" not in found and "plan" not in found
    assert not (planted.parent / "was-run").exists()
