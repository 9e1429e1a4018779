"""Make the pictures of the editor in docs/pictures: `python docs/editor_screenshot.py`.

What is shown is what `jaxresid server` says of a model of Equinox whose step was checked for an
H100. It is shown by Monaco, which is the editor in VS Code; npm fetches it, and Chromium draws it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

_ROOT = Path(__file__).parent.parent
_PICTURES = _ROOT / "docs" / "pictures"
_PAGE = Path(__file__).with_suffix(".html")
_MONACO = "monaco-editor@0.54.0"
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = folder / "project"
        project.mkdir()
        (project / "train.py").write_text(_MODEL)
        (project / "pyproject.toml").write_text(_TARGETS)
        os.environ["JAXRESID_CACHE_DIR"] = str(folder / "cache")
        subprocess.run(
            [sys.executable, "-m", "jaxresid", "check", "train", "-q"], cwd=project, check=False
        )
        said = asyncio.run(_said_by_server(project))
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", _MONACO]
        subprocess.run(npm, cwd=folder, check=True)
        page = folder / "node_modules" / "monaco-editor" / "min" / "page.html"
        page.write_text(_PAGE.read_text().replace("SAID", json.dumps(said)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"),
                args=["--no-sandbox", "--allow-file-access-from-files"],
            )
            shown = browser.new_page(viewport={"width": 1000, "height": 620})
            shown.goto(page.as_uri())
            shown.wait_for_selector("html[data-ready]", state="attached")
            _picture(shown, "x = x + self.attention", "editor.action.showHover", "editor.png")
            _picture(shown, "nothing_saveable()", "editor.action.quickFix", "editor-fix.png")
            browser.close()


async def _said_by_server(project: Path) -> dict[str, Any]:
    """Return what the server says of the project's file, as the protocol's JSON."""
    from lsprotocol import types
    from pygls.lsp.client import LanguageClient

    client = LanguageClient("screenshot", "1")
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)  # type: ignore[untyped-decorator]
    def _published(params: Any) -> None:
        if not found.done():
            found.set_result(params.diagnostics)

    await client.start_io(sys.executable, "-m", "jaxresid", "server")
    folder = types.WorkspaceFolder(project.as_uri(), "project")
    await client.initialize_async(
        types.InitializeParams(
            types.ClientCapabilities(
                text_document=types.TextDocumentClientCapabilities(
                    hover=types.HoverClientCapabilities(content_format=[types.MarkupKind.Markdown])
                )
            ),
            workspace_folders=[folder],
        )
    )
    client.initialized(types.InitializedParams())
    file = project / "train.py"
    text = file.read_text()
    client.text_document_did_open(
        types.DidOpenTextDocumentParams(types.TextDocumentItem(file.as_uri(), "python", 1, text))
    )
    document = types.TextDocumentIdentifier(file.as_uri())
    whole = types.Range(types.Position(0, 0), types.Position(len(text.splitlines()), 0))
    diagnostics = await found
    said: dict[str, Any] = {
        "diagnostics": diagnostics,
        "hints": await client.text_document_inlay_hint_async(
            types.InlayHintParams(document, whole)
        ),
        "lenses": await client.text_document_code_lens_async(types.CodeLensParams(document)),
        "actions": await client.text_document_code_action_async(
            types.CodeActionParams(document, whole, types.CodeActionContext(diagnostics))
        ),
        "hovers": [
            await client.text_document_hover_async(
                types.HoverParams(document, types.Position(n, 0))
            )
            for n in range(len(text.splitlines()))
        ],
    }
    made: dict[str, Any] = client.protocol._converter.unstructure(said)
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()
    return {"text": text, **made}


def _picture(page: Page, code: str, action: str, name: str) -> None:
    """Draw the editor around some code, with what an action shows there."""
    line = 1 + next(i for i, text in enumerate(_MODEL.splitlines()) if code in text)
    column = 2 + _MODEL.splitlines()[line - 1].index(code)
    page.evaluate(
        """([lineNumber, column]) => {
          editor.setPosition({ lineNumber, column });
          editor.setScrollTop(editor.getTopForLineNumber(lineNumber) - 150);
          editor.focus();
        }""",
        [line, column],
    )
    page.wait_for_timeout(1000)
    page.evaluate("action => editor.trigger('script', action)", action)
    page.wait_for_timeout(1500)
    page.screenshot(path=str(_PICTURES / name))
    page.keyboard.press("Escape")


if __name__ == "__main__":
    main()
