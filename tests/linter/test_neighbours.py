"""What is asked of the other files of a project: each is parsed once, and none is kept for long."""

import ast
import gc
import weakref

import pytest

from jaxresid.linter import lint_source
from jaxresid.linter.resolve import neighbours, project
from jaxresid.linter.resolve.project_module import ProjectModule
from jaxresid.linter.text import document
from jaxresid.settings.config import Config

_MODEL = """
import jax


def layer(x):
    return jax.numpy.sin(x)


block = jax.checkpoint(layer)


@jax.checkpoint
def loss(x):
    return block(x).sum()


@jax.checkpoint
def energy(x):
    return block(x) ** 2
"""
_USERS = {
    "train": "import jax\nfrom model import loss\n\n\ngrad = jax.grad(loss)\n",
    "run": "import jax\nimport model\n\n\ndef run(x):\n    return jax.lax.map(model.energy, x)\n",
    "both": "import jax\nfrom model import energy, loss\n\n\n"
    "def f(x):\n    return loss(energy(x))\n\n\nforward = jax.jvp(f, (1.0,), (1.0,))\n",
    "unused": "from model import energy, loss\n",
    "alias": "from train import grad\nfrom model import layer\n\n\nsame = layer\n",
}
_NAMES = ("loss", "energy", "layer", "block", "missing")


def _project(tmp_path, files):
    modules = []
    for name, text in files.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        modules.append(ProjectModule(path, name))
    return project.Project(lambda: modules, complete=True), tmp_path / "model.py"


@pytest.fixture
def parsed(monkeypatch):
    """The files that were parsed, by name."""
    names = []

    def parse(source):
        names.append(source.path.rpartition("/")[2])
        return ast.parse(source.text)

    monkeypatch.setattr(project, "parse", parse)
    return names


def _answers(index, home):
    return {name: index.remote_uses(f"model.{name}", home) for name in _NAMES}


def test_a_file_whose_tree_is_gone_answers_as_before(tmp_path, monkeypatch, parsed):
    files = {"model": _MODEL, **_USERS}
    before = _answers(*_project(tmp_path, files))
    assert [u.kind for u in before["loss"]] == ["derivative", "call"]
    monkeypatch.setattr(neighbours, "_MAX_KEPT", 1)
    parsed.clear()
    index, home = _project(tmp_path, files)
    assert _answers(index, home) == before == _answers(index, home)
    assert sorted(parsed) == ["alias.py", "both.py", "run.py", "train.py", "unused.py"]


def test_what_no_rule_could_ask_about_is_looked_up_again(tmp_path, monkeypatch):
    plain = "def loss(x):\n    return x\n\n\ndef energy(x):\n    return x\n"
    files = {"model": plain, **_USERS}
    before = _answers(*_project(tmp_path, files))
    assert [u.kind for u in before["energy"]] == ["loop", "call"]
    monkeypatch.setattr(neighbours, "_MAX_KEPT", 1)
    assert _answers(*_project(tmp_path, files)) == before


def test_strings_are_counted_in_files_that_quote_them(tmp_path, parsed):
    files = {"a": "x = ('qkv', 'qkv')\n", "b": "qkv = 1\n", "c": "y = f'qkv'\n", "d": "qkv = '\n"}
    index, _ = _project(tmp_path, files)
    assert index.strings("qkv") == 3
    assert parsed == ["a.py", "c.py"]


def test_an_unreadable_file_may_hold_a_string_any_number_of_times(tmp_path):
    index, _ = _project(tmp_path, {"a": "x = 'qkv'\n", "b": "# coding: none\n'qkv'\n"})
    assert index.strings("qkv") > 1000


def test_trees_go_without_the_garbage_collector(tmp_path, monkeypatch):
    trees = []

    def parse(source, **_):
        tree = ast.parse(source.text)
        trees.append(weakref.ref(tree))
        return tree

    monkeypatch.setattr(document, "parse", parse)
    gc.disable()
    try:
        # No other file can import it.
        assert lint_source(_MODEL, str(tmp_path / "a-model.py"), config=Config(tmp_path))
        assert [tree() for tree in trees] == [None]
    finally:
        gc.enable()
