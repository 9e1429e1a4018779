"""The functions of a file that could be targets, from its text."""

import pytest

from jaxresid.base.errors import TargetError
from jaxresid.targets.listing import Candidate, candidates_of, file_of, functions_of


@pytest.fixture
def found(tmp_path):
    def found(source):
        path = tmp_path / "model.py"
        path.write_text(source)
        return candidates_of(path)

    return found


def test_nothing_is_run(found):
    assert [c.name for c in found("raise SystemExit\ndef loss(x): ...")] == ["loss"]


def test_signatures(found):
    (only,) = found("def loss(a: int, /, b, c: str = 'x', *rest, d, e=3, **more) -> float: ...")
    assert only == Candidate("loss", "(a, b, c=..., *rest, d, e=..., **more)", ("a", "b"))
    assert found("def loss(a, *, b): ...")[0].signature == "(a, *, b)"


def test_inputs_are_those_that_are_taken_by_default(found):
    source = "def f(x): ...\ndef g(x): ...\ndef f_inputs(): ...\n"
    assert {c.name: c.inputs for c in found(source)} == {"f": "f_inputs", "g": None}
    source += "def example_inputs(): ...\n"
    assert {c.name: c.inputs for c in found(source)} == {"f": "f_inputs", "g": "example_inputs"}


def test_the_likeliest_come_first(found):
    source = "def norm(x): ...\ndef make(): return (lambda x: x), (1,)\n"
    source += "def train_step(s): ...\ndef net(x): ...\ndef net_inputs(): ...\n"
    assert [c.name for c in found(source)] == ["net", "train_step", "norm", "make"]


@pytest.mark.parametrize(
    "source",
    [
        "def _loss(x): ...",
        "def test_loss(x): ...",
        "def loss_inputs(batch): ...",
        "def main(): ...",
        "def version(): return 1, 2",
        "class Model:\n    def loss(self, x): ...",
        "if __name__ == '__main__':\n    def loss(x): ...",
        "async def loss(x): ...",
        "",
    ],
)
def test_what_can_hardly_be_a_target(found, source):
    assert found(source) == ()


def test_functions_under_conditions_count_once(found):
    source = "try:\n    import a\nexcept ImportError:\n    pass\nelse:\n    def f(x): ...\n"
    source += "if a:\n    def loss(x): ...\nelse:\n    def loss(x, y): ...\n"
    assert [(c.name, c.signature) for c in found(source)] == [("loss", "(x, y)"), ("f", "(x)")]


def test_what_builds(found):
    inner = "def make(n=3):\n    def loss(x): ...\n    return loss, (n,)\n"
    assert found(inner.replace("n=3", "")) == (Candidate("make", "()", builds=True),)
    assert not found(inner)[0].builds  # with a parameter it could as well be asked about itself


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"def f(:", r"is not Python: .*\(line 1\)"),
        (b"\x00", "is not Python"),
        (None, "cannot read"),
    ],
)
def test_what_cannot_be_read(tmp_path, content, said):
    path = tmp_path / "m.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TargetError, match=said):
        functions_of(path)


def test_the_file_of_a_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    package = tmp_path / "lib" / "pack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert str(file_of("a")) == str(file_of("a.py")) == "a.py"
    assert file_of("pack") is None
    assert file_of("pack", ("lib",)) == package.relative_to(tmp_path) / "__init__.py"
    assert file_of("lib/pack") is file_of("./notes.txt") is file_of("b.py") is file_of("") is None
