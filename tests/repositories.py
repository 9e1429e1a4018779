"""A repository of git with two versions of a model; conftest.py files take the fixtures."""

import os
import subprocess

import pytest

MODEL = """
import jax
import jax.numpy as jnp


def loss(x):
    return jnp.sum(jnp.sin(x) ** 2)


def loss_inputs():
    return (jax.ShapeDtypeStruct((8, 8), jnp.float32),)
"""
CHANGED = MODEL.replace("    return jnp.sum", "    x = x + jnp.cos(x)\n    return jnp.sum")


@pytest.fixture
def git():
    """Runs git in a folder and returns what it prints."""

    def git(folder, *arguments):
        settings = ("user.name=A", "user.email=a@b.example", "protocol.file.allow=always")
        options = [part for setting in settings for part in ("-c", setting)]
        done = subprocess.run(
            ["git", "-C", str(folder), *options, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
        )
        return done.stdout

    return git


@pytest.fixture
def repository(tmp_path, git, monkeypatch):
    """A repository whose commit `main` has MODEL, and whose working tree has CHANGED."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "model.py").write_text(MODEL)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "One")
    (folder / "model.py").write_text(CHANGED)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return folder


@pytest.fixture
def left_over(git):
    """What checkouts have left of themselves in a repository: a function of its folder."""

    def left_over(folder):
        known = git(folder, "worktree", "list", "--porcelain").count("worktree ")
        return known - 1

    return left_over
