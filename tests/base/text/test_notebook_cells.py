"""Lines of a notebook are told by its cells."""

import sys
import types

import jax.numpy as jnp

import jaxresid
from jaxresid.base.text.notebook_cells import cell_name


def shell(names):
    return types.SimpleNamespace(
        get_ipython=lambda: types.SimpleNamespace(
            compile=types.SimpleNamespace(
                format_code_name=lambda name: ("Cell", names[name]) if name in names else None
            )
        )
    )


def test_a_cell_has_its_number(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", shell({__file__: "In[7]"}))
    report = jaxresid.inspect(lambda x: jnp.sin(x).sum())(jnp.ones(3))
    assert {r.origin.location.file for r in report.residuals} == {"In[7]"}
    assert cell_name("other.py") is None


def test_without_ipython_there_are_no_cells(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert cell_name(__file__) is None


def test_outside_a_shell_and_in_an_old_one(monkeypatch):
    none = types.SimpleNamespace(get_ipython=lambda: None)
    monkeypatch.setitem(sys.modules, "IPython", none)
    assert cell_name(__file__) is None
    old = types.SimpleNamespace(compile=types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: old))
    assert cell_name(__file__) is None
