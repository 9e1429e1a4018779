"""The linter from Python."""

import pytest

import jaxresid
from jaxresid.settings.config import Options, load

BAD = "import jax\n\n\ndef f(g, x):\n    jax.checkpoint(g)\n    return g(x)\n"
GOOD = BAD.replace("    jax.checkpoint(g)\n", "    g = jax.checkpoint(g)\n")


def test_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (violation,) = jaxresid.lint_source(BAD)
    assert isinstance(violation, jaxresid.Violation)
    assert (violation.code, violation.path, violation.span.row) == ("JXR105", "-", 5)
    assert jaxresid.lint_source(BAD.encode(), "model.py")[0].path == "model.py"
    assert jaxresid.lint_source(GOOD) == ()


def test_fix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert jaxresid.fix_source(BAD) == BAD
    assert jaxresid.fix_source(BAD, unsafe=True) == GOOD


def test_paths(tmp_path):
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "good.py").write_text(GOOD)
    (linted,) = jaxresid.lint_paths([tmp_path])
    assert linted.path == str(tmp_path / "bad.py")
    with pytest.raises(jaxresid.JaxresidError, match="no such file"):
        jaxresid.lint_paths([tmp_path / "missing.py"])


def test_configuration(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.jaxresid]\nignore = ["JXR1"]\n')
    (tmp_path / "bad.py").write_text(BAD)
    assert jaxresid.lint_paths([tmp_path]) == ()
    assert jaxresid.lint_source(BAD, str(tmp_path / "new.py")) == ()
    config = load(tmp_path, Options(select=("JXR105",)))
    assert len(jaxresid.lint_paths([tmp_path], config=config)) == 1


def test_a_neighbour_counts(tmp_path):
    (tmp_path / "model.py").write_text(
        "import jax\n\n\n@jax.checkpoint\ndef loss(w):\n    return w\n"
    )
    train = tmp_path / "train.py"
    train.write_text("import jax\nfrom model import loss\n\nstep = jax.grad(loss)\n")
    (linted,) = jaxresid.lint_paths([tmp_path / "model.py"])
    (violation,) = linted.violations
    assert violation.code == "JXR101"
    assert [(r.path, r.span.row) for r in violation.related] == [(str(train), 4)]
    train.write_text("from model import loss\n\nstep = loss\n")
    assert jaxresid.lint_paths([tmp_path / "model.py"]) == ()


FACTORY = """\
def make():
    from jax import checkpoint
    @checkpoint(prevent_cse=False)
    def f(x):
        return x
"""


@pytest.mark.parametrize(
    ("before", "between", "after"),
    [
        ("", "", "\n"),
        ("#!/usr/bin/env python\n", "", "\n"),
        ("#!/usr/bin/env python\n# -*- coding: latin-1 -*-\n# é\n", "", "\n"),
        ('#!/usr/bin/env python\n"""What it is."""\n', "\n", "\n"),
        ("# A licence.\n\n", "", "import os\n\n"),
    ],
)
def test_an_import_is_added_below_what_has_to_come_first(before, between, after):
    fixed = jaxresid.fix_source(f"{before}{after}{FACTORY}")
    assert fixed.startswith(f"{before}{between}import functools\n{after}def make():\n"), fixed
