"""Where results that nothing differentiates end, and where they may go on."""

import pytest

import jaxresid

HEAD = """
import diffrax
import jax
import jax.numpy as jnp
import numpy as np


def step(x, _):
    y = jnp.tanh(x)
    return y, y


def first(pair):
    return pair[0]


def store(x, seen=[]):
    seen.append(x)
    return x


def run(x, n, out, logger):
    last, path = jax.lax.scan(jax.checkpoint(step), x, length=n)
"""
FOUND = "its result becomes NumPy arrays"


def said(code):
    return [v.message for v in jaxresid.lint_source(code, "m.py") if v.code == "JXR108"]


@pytest.mark.parametrize(
    "end",
    [
        "return np.asarray(path)",
        "return np.array(jnp.where(last > 0, path, 0.0))",
        "return {'path': np.asarray(path), 'last': float(last[0])}",
        "return last.item(), path.shape",
        "return jax.tree.map(np.asarray, (last, path))",
        "return np.asarray(jax.device_get(jax.vmap(jnp.sum)(path)))",
        "logger.info('%s', last)\n    return np.asarray(path)",
        "print(f'{last}')\n    return path.tolist()",
        "if (last > 0).all():\n        return None\n    return np.asarray(first((path, last)))",
        "both = [last, path]\n    return [np.asarray(both[0]), np.asarray(both[1])]",
        "return np.arange(9)[path[0]], np.asarray(last)",
        "(total := path.sum())\n    return float(total)",
        "out = np.asarray(path)\n    return jnp.asarray(out)",
    ],
)
def test_what_ends_in_numpy(end):
    (message,) = said(f"{HEAD}    {end}\n")
    assert FOUND in message


@pytest.mark.parametrize(
    "end",
    [
        "return path",
        "return np.asarray(path), last",
        "return np.sum(path)",
        "return jax.device_get(path)",
        "out.append(path)\n    return np.asarray(last)",
        "out.path = path\n    return np.asarray(last)",
        "out[0] = path\n    return np.asarray(last)",
        "logger.keep(last)\n    return logger.result(np.asarray(path))\n    return path",
        "unknown(path)\n    return np.asarray(last)",
        "return np.asarray(store(path))",
        "return lambda: path",
        "def show():\n        return np.asarray(path)\n\n    return show",
        "return logger.keep(path), np.asarray(last)",
        "yield path\n    return np.asarray(last)",
        "for each in path:\n        yield np.asarray(each)",
        "path += 1\n    return path",
        "del last, path",
        "assert (last > 0).all()",
        "global kept\n    kept = path\n    return np.asarray(last)",
    ],
)
def test_what_may_go_on(end):
    assert said(f"{HEAD}    {end}\n") == []


@pytest.mark.parametrize(
    ("definition", "is_found"),
    [
        ("def _inner(x):", True),  # only this module can call it
        ("def inner(x):", False),
        ("def __inner__(x):", False),
    ],
)
def test_a_function_that_others_may_call_goes_on(definition, is_found):
    name = definition.split()[1].partition("(")[0]
    code = f"""
import jax, jax.numpy as jnp, numpy as np


{definition}
    return jax.lax.map(jax.checkpoint(jnp.tanh), x) * 2


def run(x):
    return np.asarray({name}(x))
"""
    assert bool(said(code)) is is_found


def test_a_caller_that_does_not_convert_goes_on():
    code = """
import jax, jax.numpy as jnp, numpy as np


def _inner(x):
    return jax.lax.map(jax.checkpoint(jnp.tanh), x) * 2


def run(x):
    return np.asarray(_inner(x))


def other(x):
    return _inner(x)
"""
    assert said(code) == []


def test_a_library_that_differentiates_what_it_is_given():
    code = """
import jax, jax.numpy as jnp, numpy as np, jaxopt


def run(x):
    return np.asarray(jaxopt.LBFGS(jax.checkpoint(lambda x: jnp.sum(x**2))).run(x))
"""
    assert said(code) == []


@pytest.mark.parametrize(
    "load",
    [
        "from .load import load\n\njax, jnp = load()",
        "import pytest\n\njax = pytest.importorskip('jax')\njnp = pytest.importorskip('jax.numpy')",
        "from importlib import import_module\n\njax = import_module('jax')\njnp = jax.numpy",
    ],
)
def test_jax_that_a_function_has_imported(load):
    code = f"{load}\n\n\ndef step(f, x):\n    jax.checkpoint(f)\n    return jnp.tanh(x)\n"
    assert [v.code for v in jaxresid.lint_source(code, "m.py")] == ["JXR105"]


@pytest.mark.parametrize(
    "load",
    ["jax = load", "def run(load):\n    jax, jnp = load()", "jax = make('jax.fake')"],
)
def test_a_name_that_is_no_module(load):
    use = "    jax.checkpoint(f)" if "def" in load else "jax.checkpoint(f)"
    code = f"def load(x):\n    return x\n\n\n{load}\n{use}\n"
    found = [v.code for v in jaxresid.lint_source(code, "m.py")]
    assert found == (["JXR105"] if "make" in load else [])
