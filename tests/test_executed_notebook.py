"""A notebook, run by a kernel as Jupyter runs it, and made a page by nbconvert."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.render.notebook.test_notebook_views import ALLOWED, Page

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

CELLS = (
    "%load_ext jaxresid\nimport jax, jax.numpy as jnp, jaxresid",
    """%%residuals --on gpu:h100
params = [jax.ShapeDtypeStruct((256, 256), "float32")] * 4
x = jax.ShapeDtypeStruct((64, 256), "float32")

def loss(params, x):
    for w in params:
        x = jax.nn.gelu(x @ w)
    return jnp.mean(x ** 2)

loss(params, x)""",
    "report = %residuals loss params x --on tpu:v5e\nreport",
    "jaxresid.compare(loss, on='gpu:h100')(params, x)",
    "%residuals loss(params, y)",
)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    home = tmp_path_factory.mktemp("home")
    root = str(Path(__file__).resolve().parent.parent)
    env = {**os.environ, "IPYTHONDIR": str(home), "JAX_PLATFORMS": "cpu", "PYTHONPATH": root}
    resources = {"metadata": {"path": str(home)}}
    client = nbclient.NotebookClient(made, timeout=300, allow_errors=True, resources=resources)
    client.execute(env=env)
    return made


def outputs(notebook, number):
    return notebook.cells[number].outputs


def test_each_cell_has_one_view(notebook):
    for number in (1, 2, 3):
        (only,) = outputs(notebook, number)
        assert only.output_type == "execute_result"
        assert "text/plain" in only.data
        assert set(Page(only.data["text/html"]).tags) <= ALLOWED


def test_lines_are_those_of_cells(notebook):
    html = outputs(notebook, 1)[0].data["text/html"]
    assert re.findall(r"In\[\d+\]:\d+ \w+", html)[0] == "In[2]:7 loss"
    assert "ipykernel" not in html
    assert "x = jax.nn.gelu(x @ w)" in html


def test_an_error_is_one_line(notebook):
    (only,) = outputs(notebook, 4)
    assert (only.output_type, only.name) == ("stream", "stderr")
    assert only.text.strip() == "UsageError: %residuals: y is not defined"


def test_views_are_small(notebook):
    for number in (1, 2, 3):
        assert len(outputs(notebook, number)[0].data["text/html"]) < 150_000


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_as_a_page_it_shows_the_same_with_and_without_scripts(notebook, tmp_path, theme):
    """By Chromium: what nbconvert makes, and the same without scripts and styles, as on GitHub."""
    nbconvert = pytest.importorskip("nbconvert")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium here")
    page, _ = nbconvert.HTMLExporter(theme=theme).from_notebook_node(notebook)
    bare = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)
    bare = re.sub(r" style=(\"[^\"]*\"|'[^']*')", "", bare)
    for name, text in (("page", page), ("bare", bare)):
        file = tmp_path / f"{name}.html"
        # What is on the page is read after all pictures have been decoded.
        file.write_text(
            text + "<script>addEventListener('load', () => {document.body.dataset.widths ="
            "[...document.images].map(i => i.naturalWidth).join()})</script>"
        )
        done = subprocess.run(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", str(file)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        widths = re.search(r'data-widths="([\d,]+)"', done.stdout)[1].split(",")
        assert widths == ["960"] * 5  # two timelines, two icicles, a frontier
        assert done.stdout.count("<details>") >= 7
        assert "loss on gpu:h100" in done.stdout
