"""README tells the truth: every command that it shows runs, and prints what it shows."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys

import jax
import pytest
from update_readme import (
    PICTURE,
    README,
    ROOT,
    blocks,
    environment,
    output,
    picture,
    rule_table,
    timeless,
)

TEXT = README.read_text()
BLOCKS = blocks(TEXT)
SHOWN = [block for block in BLOCKS if block.mark is None]
COMPILED = [block for block in BLOCKS if block.mark == "tpu"]

# The JAX that README's outputs were made with; others give other residuals.
MADE_WITH = re.search(r"jax (\d+\.\d+\.\d+)$", TEXT, re.MULTILINE)[1]
COMPILED_WITH = re.search(r"libtpu\s+(\d+\.\d+\.\d+)$", TEXT, re.MULTILINE)[1]
same_jax = pytest.mark.skipif(
    jax.__version__ != MADE_WITH or os.environ.get("JAX_REMAT3", "0") == "1",
    reason=f"README shows the output of jax {MADE_WITH}",
)


def test_readme_shows_commands():
    assert len(SHOWN) >= 5
    assert [block.mark for block in BLOCKS if block.mark not in (None, "tpu")] == [
        "install",
        "test",
    ]
    assert len(COMPILED) >= 2


@pytest.mark.integration
@pytest.mark.parametrize("block", SHOWN, ids=lambda b: b.command)
def test_command_runs(block):
    shown = output(block.command)
    assert shown.strip()
    if jax.__version__ == MADE_WITH:
        assert shown == block.output, "run python tests/update_readme.py"


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("block", COMPILED, ids=lambda b: b.command)
def test_compiling_command_runs(block):
    shown = output(block.command)
    assert "peak " in shown or "XLA's peak" in shown
    libtpu = importlib.metadata.version("libtpu")
    if (jax.__version__, libtpu) == (MADE_WITH, COMPILED_WITH):
        assert timeless(shown) == timeless(block.output), "run python tests/update_readme.py"


def test_what_compiling_took_is_left_out_of_comparisons():
    text = "a\n  compiled in 93.3 s by jaxlib 0.10.2, from the cache\nb"
    assert timeless(text) == "a\n  compiled by jaxlib 0.10.2\nb"
    assert timeless("compiled in 9.3 s by x") == timeless("compiled in 0.1 s by x")
    assert timeless("compiled in 9.3 s by x") != timeless("compiled in 9.3 s by y")


def test_output_fits_80_columns():
    for block in (*SHOWN, *COMPILED):
        # A line of source, to be copied, stays a line.
        wide = ("-f jax", "jaxresid lint", "jaxresid check", "jaxresid plan")
        if not any(c in block.command for c in wide):
            assert max(map(len, block.output.splitlines())) <= 80


@same_jax
def test_picture_is_of_this_version():
    def words(svg):  # how rich draws them is its own affair
        return re.findall(r">([^<]+)</text>", svg)

    assert words(PICTURE.read_text()) == words(picture()), "run python tests/update_readme.py"


@pytest.mark.integration
def test_options_named_in_readme_exist():
    """An option that README names and no command has is a promise broken."""
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    helps = "".join(
        subprocess.run(
            [sys.executable, "-m", "jaxresid", *command],
            capture_output=True,
            text=True,
            check=True,
            env=environment(),
        ).stdout
        for command in (
            ["--help"],
            *(
                [c, "--help"]
                for c in (
                    *("report", "compare", "plan", "compile", "sweep", "split", "lint", "check"),
                    "rules",
                )
            ),
        )
    )
    assert named <= set(re.findall(r"--[a-z][a-z-]+", helps))


def test_the_rules_are_listed():
    assert rule_table() in TEXT, "run python tests/update_readme.py"


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
