"""`%residuals` and `%%residuals`: what they report on, their options, and errors of one line."""

import sys

import pytest

pytest.importorskip("IPython")
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import jaxresid

SETUP = """
import jax, jax.numpy as jnp
def loss(params, x, scale=1.0):
    for w in params:
        x = jnp.tanh(x @ w)
    return scale * jnp.mean(x)
params = [jax.ShapeDtypeStruct((64, 64), "float32")] * 3
x = jax.ShapeDtypeStruct((32, 64), "float32")
def aux(params, x):
    return loss(params, x), x
def looped(w, x):
    return w * jax.lax.while_loop(lambda y: y < 1, lambda y: 2 * y, x).sum()
def bad():
    raise ValueError(chr(27) + "[31m")
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    config, main = Config(), sys.modules["__main__"]
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(
        config=config, ipython_dir=str(tmp_path_factory.mktemp("ipython"))
    )
    shell.extension_manager.load_extension("jaxresid")
    assert shell.run_cell(SETUP, store_history=True).success
    yield shell
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main  # which a shell takes for its own names


@pytest.fixture
def line(shell):
    return lambda text: shell.run_line_magic("residuals", text)


@pytest.fixture
def cell(shell):
    return lambda text, options="": shell.run_cell_magic("residuals", options, text)


@pytest.mark.parametrize(
    "text",
    [
        "loss(params, x)",
        "loss params x",
        "loss params, x",
        "loss(params, x=x)",
        "loss(*[params, x])",
        "--on gpu:h100 loss(params, x)",
        "loss params x --on gpu:h100",
        "loss( params,  x ) --on=gpu:h100",
        "loss params jax.ShapeDtypeStruct((32,64),'float32')",
        "loss.__call__ params x",
    ],
)
def test_a_line_is_the_same_as_inspect(line, shell, text):
    expected = jaxresid.inspect(shell.user_ns["loss"], on="gpu:h100", lifetimes=True)(
        shell.user_ns["params"], shell.user_ns["x"]
    )
    found = line(text)
    assert found.totals == expected.totals
    assert (found.peak.nbytes, found.place.name) == (expected.peak.nbytes, "gpu:h100")
    assert found.lifetimes


def test_options(line):
    assert line("loss params x --on tpu:v5e").place.name == "tpu:v5e"
    assert line("loss(params, x) --argnums 1").target.differentiated == ("x",)
    assert line("aux(params, x) --has-aux").totals == line("loss(params, x)").totals
    assert line("jax.grad(loss)(params, x) --mode program").target.mode == "program"
    looped = line("looped(1.0, 1.0) --argnums 0 --trips 9")
    assert looped.cost.forward.notes == ("while: counted with 9 trips, as --trips says",)
    whole = line("loss params x --on gpu:h100").place.memory_nbytes
    assert line("loss params x --on gpu:h100 --margin 1GiB").place.memory_nbytes == whole - 2**30
    assert line("loss params x --on gpu:h100 --memory-fraction 0.5").place.memory_nbytes < whole


def test_the_mode_is_one_of_them(line):
    asked = line("loss(params, x)").target, line("--mode program loss(params, x)").target
    assert [target.mode for target in asked] == ["loss", "program"]


def test_a_negative_number_is_no_option(line):
    assert line("loss(params, x, -1.0)").totals.computed_nbytes
    assert line("loss(params, x, scale=2 - 1.0)").totals.computed_nbytes


@pytest.mark.integration
def test_a_cpu_has_no_lifetimes_and_is_compiled(line):
    found = line("loss params x --on cpu")
    assert (found.peak, found.lifetimes) == (None, ())
    assert found.compiled


class TestCell:
    def test_the_cell_runs_and_its_last_line_does_not(self, cell, shell):
        found = cell(
            "ran = []\ndef f(x):\n    ran.append(x)\n    return jnp.sin(x).sum()\n\nf(x)\n"
        )
        assert found.target.name == "f"
        assert found.totals.computed_nbytes == 32 * 64 * 4
        assert all(isinstance(each, __import__("jax").core.Tracer) for each in shell.user_ns["ran"])

    def test_lines_are_those_of_the_cell(self, cell):
        found = cell("def g(x):\n    return jnp.sin(x).sum()\ng(x)")
        (place,) = {r.origin.location for r in found.residuals if r.origin.kind == "computed"}
        assert place.line == 3  # the magic is the first
        assert place.file.startswith("In[")
        assert place.code == "return jnp.sin(x).sum()"

    def test_a_call_over_several_lines_and_behind_a_semicolon(self, cell):
        assert cell("y = x; loss(\n    params,\n    y,\n);").totals.computed_nbytes

    def test_a_line_names_what_the_cell_makes(self, cell):
        found = cell("def h(x):\n    return jnp.cos(x).sum()\n", "h x --on gpu:h100")
        assert found.target.name == "h"

    def test_a_cell_that_fails_shows_its_own_traceback(self, cell, capsys):
        assert cell("1/0\nloss(params, x)") is None
        assert "ZeroDivisionError" in capsys.readouterr().out

    @pytest.mark.parametrize("text", ["y = 1", "def f(): pass", "#", "loss", "x = loss(params, x)"])
    def test_the_last_line_has_to_be_a_call(self, cell, text):
        with pytest.raises(UsageError, match="last line of the cell is to be a call"):
            cell(text)

    def test_no_python(self, cell):
        with pytest.raises(UsageError, match=r"the cell is not valid Python: .* \(line 1\)"):
            cell("def (:")

    def test_magics_in_it_run(self, cell):
        assert cell("here = %pwd\nloss(params, x)").totals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing to report on; write %residuals loss(params, batch), or"),
        ("lss(params, x)", "lss is not defined; did you mean `loss`?"),
        ("loss(parms, x)", "parms is not defined; did you mean `params`?"),
        ("params x", "params is list, and no function"),
        ("loss params x --onn tpu:v5e", "there is no option --onn; did you mean `--on`?"),
        ("loss params x --colour", "there is no option --colour; there are --on,"),
        ("loss params x --on tpu:v99", "unknown TPU 'v99'"),
        ("loss params x --on cpu --on gpu:h100", "--on is given more than once"),
        ("loss params x --mode", "requires an argument"),
        ("loss params x --argnums a", "--argnums a is not a list of positions; write e.g. 0,2"),
        ("loss(params[9], x)", "raises IndexError: list index out of range"),
        ("loss params [[", "is no call; write"),
        ("loss(x, x)", "fails to trace"),
    ],
)
def test_errors_are_one_line(line, text, message):
    with pytest.raises(UsageError) as caught:
        line(text)
    said = str(caught.value)
    assert said.startswith("%residuals: ")
    assert message in said
    assert len(said.splitlines()) == 1


def test_what_an_error_says_is_visible(line):
    with pytest.raises(UsageError) as caught:
        line("loss(bad(), x)")
    assert "\x1b" not in str(caught.value)
    assert "one of (bad(), x) raises ValueError" in str(caught.value)


def test_help_names_every_option(shell):
    from jaxresid.magics import _options

    text = shell.magics_manager.magics["line"]["residuals"].__doc__
    assert all(option.opts[0] in text for option in _options.params if option.opts[0][0] == "-")
