"""Finding the target, and what is said when it is not there. No jax."""

import pytest

from jaxresid.base.errors import InputsError, TargetError
from jaxresid.targets.targets import default_inputs, load, load_reference

MODULE = """
def loss(x): return x
def loss_inputs(): return (1,)
class Model:
    @staticmethod
    def apply(x): return x
    class Head:
        @staticmethod
        def score(x): return x
def apply_inputs(): return (2,)
number = 3
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "zebra.py").write_text(MODULE)
    return tmp_path


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    import sys

    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("zebra:loss", "loss"),
        ("zebra.py:loss", "loss"),
        ("zebra:Model.apply", "Model.apply"),
        ("zebra:Model.Head.score", "Model.Head.score"),
    ],
)
def test_loads(project, target, name):
    assert load(target).fun.__qualname__ == name


def test_loads_a_file_elsewhere_with_its_neighbours(project, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "neighbour.py").write_text("five = 5\n")
    (tmp_path / "deep" / "okapi.py").write_text(
        "import neighbour\ndef f(): return neighbour.five\n"
    )
    assert load(str(tmp_path / "deep" / "okapi.py") + ":f").fun() == 5


def test_loads_a_file_of_a_package_with_relative_imports(project, tmp_path):
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    for folder in ("pkg", "pkg/sub"):
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "pkg" / "base.py").write_text("six = 6\n")
    (tmp_path / "pkg" / "sub" / "gnu.py").write_text(
        "from ..base import six\ndef f(): return six\n"
    )
    loaded = load("pkg/sub/gnu.py:f")
    assert loaded.fun() == 6
    assert loaded.module.__name__ == "pkg.sub.gnu"


def test_default_inputs(project):
    assert default_inputs(load("zebra:loss"))() == (1,)
    assert default_inputs(load("zebra:Model.apply"))() == (2,)
    assert default_inputs(load("zebra:Model.Head.score")) is None


def test_references(project):
    module = load("zebra:loss").module
    assert load_reference("loss_inputs", module)() == (1,)
    assert load_reference("zebra:apply_inputs", module)() == (2,)
    with pytest.raises(InputsError, match="number is not a function but a value of type int"):
        load_reference("number", module)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("zebra", "write module:function"),
        ("zebra:", "write module:function"),
        (":loss", "write module:function"),
        ("zebr:loss", "no module named 'zebr'.*did you mean zebra"),
        ("zebra/x:loss", "no such file"),
        ("zebra:los", "has no attribute 'los'; did you mean loss"),
        ("zebra:qqqq", "it has .*loss"),
        ("zebra:Model.aply", "zebra:Model has no attribute 'aply'; did you mean apply"),
        ("zebra:number", "not callable: its type is int"),
        ("zebr.py:loss", "no such file: zebr.py; did you mean zebra.py"),
    ],
)
def test_says_what_is_wrong(project, target, message):
    with pytest.raises(TargetError, match=message):
        load(target)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "import nosuchmodule",
            r"ModuleNotFoundError: No module named 'nosuchmodule' \(yak.py, line 1\)",
        ),
        ("\nraise ValueError('boom\\nmore')", r"ValueError: boom \(yak.py, line 2\)"),
        ("def f(:", r"SyntaxError: .* \(yak.py, line 1\)"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("target", ["yak:f", "yak.py:f"])
def test_shows_the_modules_own_error(project, tmp_path, source, message, target):
    (tmp_path / "yak.py").write_text(source)
    with pytest.raises(TargetError, match="yak.* fails to import: " + message) as caught:
        load(target)
    assert "\n" not in str(caught.value)
