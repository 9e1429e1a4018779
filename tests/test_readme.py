"""README and the pages of docs/ tell the truth: what they show runs, and prints what they show."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys

import drawing
import jax
import notebooks
import pytest
from update_readme import (
    PICTURES,
    README,
    ROOT,
    Block,
    blocks,
    environment,
    output,
    pages,
    public,
    timeless,
)

from jaxresid.cli import COMMANDS

TEXT = README.read_text()
PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in pages()}
BLOCKS = [block for page in pages() for block in blocks(page)]


def once(mark):
    """The blocks with a mark, one for each command."""
    found = {block.command: block for block in reversed(BLOCKS) if block.mark == mark}
    return sorted(found.values(), key=BLOCKS.index)


SHOWN, COMPILED, ON_GPUS = once(None), once("tpu"), once("gpu")

# What the outputs were made with; other versions give other residuals.
MADE_WITH = re.search(r"^jax (\d+\.\d+\.\d+)\b", TEXT, re.MULTILINE)[1]
COMPILED_WITH = re.search(
    r"libtpu\s+(\d+\.\d+\.\d+)$", "".join(block.output for block in COMPILED), re.MULTILINE
)[1]
same_jax = pytest.mark.skipif(
    jax.__version__ != MADE_WITH or os.environ.get("JAX_REMAT3", "0") == "1",
    reason=f"the pages show the output of jax {MADE_WITH}",
)


def needed(block):
    """Skips a test where a package is missing that a block needs."""
    if block.missing:
        pytest.skip(f"{block.missing} is not installed, which {block.page} needs here")


def test_readme_is_short_and_shows_commands():
    assert len(TEXT.splitlines()) <= 250
    shown = [block for block in BLOCKS if block.page == "README.md"]
    assert [block.mark for block in shown if block.mark] == ["install", "test"]
    assert len(shown) >= 5


def test_marks_are_known_and_each_block_is_found():
    assert {block.mark for block in BLOCKS} == {None, "install", "test", "tpu", "gpu"}
    for name, text in PAGES.items():
        found = [block for block in BLOCKS if block.page == name]
        assert text.count("```console\n") == len(found), name
        assert len(re.findall(r"^<!-- (?!jaxresid|figures: )", text, re.MULTILINE)) == sum(
            block.mark is not None for block in found
        ), name


def test_equal_commands_show_equal_outputs():
    shown = {
        (block.command, block.output) for block in BLOCKS if block.mark in (None, "tpu", "gpu")
    }
    assert len(shown) == len({command for command, _ in shown}), "run tests/update_readme.py"


@pytest.mark.integration
@pytest.mark.parametrize("block", SHOWN, ids=lambda b: f"{b.page} {b.command}")
def test_command_runs(block):
    needed(block)
    shown = output(block.command)
    assert shown.strip()
    if jax.__version__ == MADE_WITH:
        assert timeless(shown) == timeless(block.output), (
            f"run python tests/update_readme.py {block.page}"
        )


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("block", COMPILED, ids=lambda b: f"{b.page} {b.command}")
def test_compiling_command_runs(block):
    shown = output(block.command)
    assert shown.strip()
    libtpu = importlib.metadata.version("libtpu")
    if (jax.__version__, libtpu) == (MADE_WITH, COMPILED_WITH):
        assert timeless(shown) == timeless(block.output), (
            f"run python tests/update_readme.py {block.page}"
        )


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("block", ON_GPUS, ids=lambda b: f"{b.page} {b.command}")
def test_command_for_a_gpu_runs(block):
    shown = output(block.command)
    assert shown.strip()
    if jax.__version__ == MADE_WITH:
        assert timeless(shown) == timeless(block.output), (
            f"run python tests/update_readme.py {block.page}"
        )


def test_what_compiling_took_is_left_out_of_comparisons():
    text = "a\n  compiled in 93.3 s by jaxlib 0.10.2, from the cache\nb"
    assert timeless(text) == "a\n  compiled by jaxlib 0.10.2\nb"
    assert timeless("compiled in 9.3 s by x") == timeless("compiled in 0.1 s by x")
    assert timeless("compiled in 9.3 s by x") != timeless("compiled in 9.3 s by y")
    assert timeless("in flax/nn/linear.py:42 Dense") == "in flax/nn/linear.py Dense"
    assert timeless("in gpt.py:42 loss") == "in gpt.py:42 loss"


def test_what_a_block_needs(monkeypatch):
    def missing(mark, command):
        return Block("page.md", mark, command, "", (0, 0)).missing

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert missing(None, "jaxresid report fixtures/tutorials/linen_step.py:train_step") == "optax"
    assert missing(None, "jaxresid report fixtures/inspect/gpt.py:loss") is None
    assert missing("tpu", "jaxresid compile fixtures/inspect/gpt.py:loss") == "libtpu"
    assert missing("gpu", "jaxresid compile fixtures/inspect/gpt.py:loss") == "jax_cuda12_plugin"


def test_output_fits_80_columns():
    # A line of source, to be copied, stays a line; so does a finding in a line format.
    wide = ("-f jax", "jaxresid lint", "jaxresid check", "jaxresid plan", "jaxresid split")
    for block in (*SHOWN, *COMPILED, *ON_GPUS):
        if not any(c in block.command for c in wide):
            assert max(map(len, block.output.splitlines())) <= 80, (block.page, block.command)


@pytest.mark.integration
@same_jax
@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_pictures_are_what_is_drawn(picture):
    drawn = output(PICTURES[picture])
    assert picture.read_text() == drawn, "run python tests/update_readme.py"


def test_pictures_are_shown():
    shown = "".join(PAGES.values())
    assert all(picture.name in shown for picture in PICTURES)


@pytest.mark.integration
@same_jax
@pytest.mark.parametrize("notebook", notebooks.NOTEBOOKS, ids=lambda n: n.name)
def test_notebook_runs(notebook):
    assert notebooks.executed(notebook) == notebook.read_text(), "run python tests/update_readme.py"


def test_notebooks_have_outputs():
    assert notebooks.NOTEBOOKS
    for notebook in notebooks.NOTEBOOKS:
        cells = json.loads(notebook.read_text())["cells"]
        assert any(cell.get("outputs") for cell in cells)


def test_a_cell_shows_what_it_prints_and_its_last_value():
    cells = [{"cell_type": "code", "source": [s], "outputs": []} for s in ("x = 2", "print(x)\nx")]
    ran = json.loads(notebooks.run(json.dumps({"cells": cells})))["cells"]
    assert ran[0]["outputs"] == []
    printed, value = ran[1]["outputs"]
    assert (printed["text"], value["data"]) == (["2\n"], {"text/plain": ["2"]})


@pytest.mark.parametrize("library", ["nnx", "linen", "equinox"])
def test_tutorial_is_its_fixture(library):
    """The code that a tutorial has its reader write is the file that its outputs are of."""
    text = PAGES[f"docs/tutorials/{library}-step.md"]
    code = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    fixture = (ROOT / "fixtures" / "tutorials" / f"{library}_step.py").read_text()
    assert "".join(code).split() == fixture.split()
    assert all(part in fixture for part in code)


def test_pages_are_in_the_table_of_contents():
    index = PAGES["docs/index.md"]
    for name in (*PAGES, *(n.relative_to(ROOT).as_posix() for n in notebooks.NOTEBOOKS)):
        entry = re.sub(r"^docs/|\.\w+$", "", name)
        assert "/" not in entry or f"\n{entry}\n" in index, name  # a glob lists the others


def links(page, text):
    """The relative links of a page, without anchors, outside of code."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)(?:#[^)]*)?\)", prose)
    return [os.path.normpath(os.path.join(os.path.dirname(page), link)) for link in found]


def test_links_lead_somewhere():
    """Sphinx checks anchors and what is generated; README is none of its pages."""
    generated = ("docs/reference/rules/", "docs/reference/api.md", "docs/reference/command-line.md")
    pages = sorted((ROOT / "docs" / "gallery").glob("*.md"))
    drawn = {f"docs/gallery/{file}" for page in pages for *_, file in drawing.commands(page)}
    for page, text in PAGES.items():
        for link in links(page, text):
            is_generated = link.startswith(generated) or link in drawn
            assert page != "README.md" if is_generated else (ROOT / link).exists(), (
                f"{page}: {link}"
            )


def test_links_of_readme_become_absolute(monkeypatch):
    text = "[a](docs/how-to/lint.md#formats) [b](LICENSE) ![c](fixtures/p.svg) [d](https://x.y)"
    monkeypatch.setattr("jaxresid.base.urls.REPOSITORY", None)
    assert public(text) == text
    monkeypatch.setattr("jaxresid.base.urls.REPOSITORY", "https://r")
    monkeypatch.setattr("jaxresid.base.urls.DOCUMENTATION", "https://d")
    assert public(text) == (
        "[a](https://d/how-to/lint.html#formats) [b](https://r/blob/main/LICENSE) "
        "![c](https://r/raw/main/fixtures/p.svg) [d](https://x.y)"
    )
    assert public(public(text)) == public(text)


def test_links_of_readme_are_public():
    assert public(TEXT) == TEXT, "run python tests/update_readme.py README.md"


@pytest.mark.integration
def test_options_named_in_pages_exist():
    """An option that a page names and no command has is a promise broken."""
    helps = subprocess.run(
        ["bash", "-c", f"for c in {' '.join(COMMANDS)}; do jaxresid $c --help || exit 1; done"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    ).stdout
    known = set(re.findall(r"--[a-z][a-z-]+", helps)) | {"--version"}
    for page, text in PAGES.items():
        prose = re.sub(r"^```(?!console).*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose))
        others = set(re.findall(r"(?:python|pip|pytest) [^`\n]*?(--[a-z][a-z-]+)", prose))
        assert named <= known | others, page


@pytest.mark.slow
def test_install_command_on_a_bare_clone(tmp_path):
    """The first of the two commands, with Python alone; .ci/run ends with the second."""
    (install,) = (block.command for block in BLOCKS if block.mark == "install")
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".git", ".venv*", "envs", "*_cache", "__pycache__")
    shutil.copytree(ROOT, clone, ignore=ignored)
    base = os.path.join(sys.base_prefix, "bin")
    path = f"{base}{os.pathsep}{os.environ['PATH']}"
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        ["bash", "-c", install],
        cwd=clone,
        env={**clean, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "kept for the backward pass" in done.stdout
