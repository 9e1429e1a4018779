"""Make the pictures of the editor in docs/pictures: `python -m docs.editor_screenshot`.

They are of VS Code with the extension, which shows a model of Equinox whose step was checked for an
H100: `npm run package` in editors/vscode and `python -m tests.server.vscode .ci/envs/vscode` first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.server import vscode

_PICTURES = Path(__file__).parent / "pictures"
_TARGETS = """
[tool.jaxresid.targets.train]
target = "train.py:step"
on = "gpu:h100"
"""
_MODEL = '''"""A decoder in Equinox, most of its blocks in a checkpoint, and its training step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norms: list[eqx.nn.LayerNorm]
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width, heads, key):
        a, b, c = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=a)
        self.norms = [eqx.nn.LayerNorm(width) for _ in range(2)]
        self.up = eqx.nn.Linear(width, 4 * width, key=b)
        self.down = eqx.nn.Linear(4 * width, width, key=c)

    def __call__(self, x):
        h = jax.vmap(self.norms[0])(x)
        x = x + self.attention(h, h, h)
        h = jax.vmap(self.up)(jax.vmap(self.norms[1])(x))
        return x + jax.vmap(self.down)(jax.nn.gelu(h))


class Decoder(eqx.Module):
    embedding: eqx.nn.Embedding
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, words, width, layers, key):
        first, last, *keys = jax.random.split(key, layers + 2)
        self.embedding = eqx.nn.Embedding(words, width, key=first)
        self.blocks = [Block(width, 8, each) for each in keys]
        self.head = eqx.nn.Linear(width, words, key=last)

    def __call__(self, tokens):
        x = jax.vmap(self.embedding)(tokens)
        policy = jax.checkpoint_policies.nothing_saveable()
        for block in self.blocks[:-2]:
            x = eqx.filter_checkpoint(block, policy=policy)(x)
        for block in self.blocks[-2:]:
            x = block(x)
        return jax.vmap(self.head)(x)


def loss(model, tokens):
    logits = jax.vmap(model)(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@eqx.filter_jit
def step(model, state, tokens):
    value, gradients = eqx.filter_value_and_grad(loss)(model, tokens)
    updates, state = optax.adamw(1e-3).update(gradients, state, model)
    return eqx.apply_updates(model, updates), state, value


def step_inputs():
    model = Decoder(8192, 512, 8, jax.random.key(0))
    state = optax.adamw(1e-3).init(eqx.filter(model, eqx.is_array))
    return model, state, jnp.zeros((8, 513), int)
'''


def main() -> None:
    """Write the pictures."""
    installed = vscode.installed()
    if installed is None:
        sys.exit("no VS Code: python -m tests.server.vscode .ci/envs/vscode")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        train = Path(name) / "project" / "train.py"
        home.mkdir()
        train.parent.mkdir()
        train.write_text(_MODEL)
        (train.parent / "pyproject.toml").write_text(_TARGETS)
        environment = {**os.environ, "JAXRESID_CACHE_DIR": str(home / "cache")}
        check = [sys.executable, "-m", "jaxresid", "check", "train", "-q"]
        subprocess.run(check, cwd=train.parent, env=environment, check=False)
        programs = Path(sys.executable).parent
        with vscode.served(installed, home, programs) as address, vscode.browser() as browser:
            window = vscode.Window(
                browser.new_page(viewport={"width": 1200, "height": 880}), address
            )
            window.open(train, trusted=True)
            window.command("View: Toggle Primary Side Bar Visibility")
            _picture(window, "x = x + self.attention", "Show or Focus Hover", "editor.png")
            _picture(window, "nothing_saveable()", "Quick Fix...", "editor-fix.png")


def _picture(window: vscode.Window, code: str, command: str, name: str) -> None:
    """Draw the window around some code, with what a command shows there."""
    lines = _MODEL.splitlines()
    row = next(n for n, text in enumerate(lines, 1) if code in text)
    window.go_to(row, lines[row - 1].index(code) + 2)
    window.wait_for_code("of all that is kept")
    window.command(command)
    window.page.wait_for_timeout(2000)
    window.page.screenshot(path=str(_PICTURES / name))
    window.page.keyboard.press("Escape")


if __name__ == "__main__":
    main()
