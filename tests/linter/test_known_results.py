"""Results from the cache are those of linting anew, and little is linted anew after an edit."""

import os
import random
import shutil
from pathlib import Path

import pytest

from jaxresid.linter.resolve.contents import Contents, Question
from jaxresid.linter.run import file_states
from jaxresid.linter.run.file_states import FileStates
from jaxresid.linter.run.files import LintRun
from jaxresid.settings.config import Options, load

MODEL = "import jax\n\n\n@jax.checkpoint\ndef loss(w, x):\n    return (w @ x).sum()\n"
TRAIN = "import jax\nfrom model import loss\n\nstep = jax.value_and_grad(loss)\n"
NAMED = "from jax.ad_checkpoint import checkpoint_name\n\n\ndef f(x, n):\n"
# What each file may hold; they ask about one another.
TEXTS = {
    "shim": (
        "import jax\n\nremat = jax.checkpoint\ndiff = jax.grad\n",
        "import jax\n\nremat = jax.jit\ndiff = jax.jit\n",
        "from more import remat, diff\n",
        "remat = 1 +\n",
    ),
    "more": ("import jax\n\nremat = jax.checkpoint\ndiff = jax.grad\n", "remat = diff = print\n"),
    "model": (
        MODEL,
        "import jax\nfrom shim import remat\n\n\n@remat\ndef loss(w, x):\n    return w @ x\n",
        "import jax  # remat\n\nloss = jax.jit(lambda w: w)\n",
    ),
    "train": (
        TRAIN,
        "import jax\nimport model\n\nstep = jax.grad(model.loss)\n",
        "from model import loss\nfrom shim import diff\n\nstep = diff(loss)\n",
        "import jax\nfrom other import loss\n\nstep = jax.grad(loss)\n",
        "import model\n",
    ),
    "other": ("from model import loss\n", "from model import loss\n\nprint(loss)\n", ""),
    "naming": (
        f'{NAMED}    return checkpoint_name(x, "a")\n',
        f'{NAMED}    return checkpoint_name(x, "b")\n',
        f"{NAMED}    return checkpoint_name(x, n)\n",
    ),
    "policy": (
        'import jax\n\nP = jax.checkpoint_policies.save_only_these_names("a")\n',
        'import jax\n\nP = jax.checkpoint_policies.save_only_these_names("b", "c")\n',
    ),
    "strings": ('NAMES = ("a", "c")\n', 'NAMES = ("b",)\n', "NAMES = ()\n"),
}


def linted(cache, paths=(".",)):
    run = LintRun(load(Path(), Options()), nearest=Options())
    return run.run(list(paths), jobs=1, cache=cache)


@pytest.fixture
def anew(monkeypatch):
    """The paths of the files that were linted rather than looked up."""
    found = []
    content = LintRun.content
    monkeypatch.setattr(
        LintRun,
        "content",
        lambda self, raw, path, at: found.append(path) or content(self, raw, path, at),
    )
    return found


def project(tmp_path, monkeypatch, **texts):
    home = tmp_path / "project"
    home.mkdir()
    monkeypatch.chdir(home)
    Path("pyproject.toml").write_text('[tool.jaxresid]\nselect = ["ALL"]\n')
    for name, text in texts.items():
        Path(f"{name}.py").write_text(text)
    return home


@pytest.mark.integration
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 20))]
)
@pytest.mark.parametrize("settled", [False, True])
def test_results_from_the_cache_are_those_without(tmp_path, monkeypatch, seed, settled):
    if settled:  # as if all edits were long ago
        monkeypatch.setattr(file_states, "GRANULARITY_NS", 0)
    rng = random.Random(seed)
    project(tmp_path, monkeypatch, **{name: texts[0] for name, texts in TEXTS.items()})
    reporting = 0
    for step in range(30):
        paths = rng.choice(((".",), (".",), (".",), ("model.py",), ("naming.py", "policy.py")))
        paths = [p for p in paths if Path(p).exists()]
        expected = linted(False, paths)
        assert linted(True, paths) == expected
        reporting += bool(expected)
        for _ in range(rng.choice((0, 1, 1, 2))):
            name = rng.choice((*TEXTS, "shim"))
            file = Path(f"{name}.py")
            match rng.choice(("edit",) * 12 + ("touch", "delete", "move")):
                case "touch" if file.exists():
                    os.utime(file, ns=(step, step))
                case "delete":
                    file.unlink(missing_ok=True)
                case "move" if file.exists():
                    shutil.move(file, f"{rng.choice(tuple(TEXTS))}.py")
                case _:
                    file.write_text(rng.choice(TEXTS[name]))
    assert reporting


def test_a_result_follows_the_files_that_it_was_made_from(tmp_path, monkeypatch):
    """Each edit of another file changes the result."""
    _, through, _ = TEXTS["model"]
    _, _, derived, *_ = TEXTS["train"]
    good, other, passed_on, _ = TEXTS["shim"]
    project(tmp_path, monkeypatch, model=through, train=derived, naming=TEXTS["naming"][0])
    for name, text, expected in (
        ("apart", "", False),
        ("shim", good, True),
        ("shim", other, False),
        ("shim", passed_on, False),
        ("more", TEXTS["more"][0], True),
        ("more", TEXTS["more"][1], False),
        ("more", TEXTS["more"][0].replace("jax.grad", "jax.jit"), False),
        ("more", TEXTS["more"][0], True),
        ("train", derived.replace("shim", "more"), True),
        ("shim", good, True),
        ("more", TEXTS["more"][1], False),  # which only train.py asks about
    ):
        Path(f"{name}.py").write_text(text)
        found = [v.code for r in linted(True) for v in r.violations]
        assert ("JXR101" in found) == expected, (name, text)


TWO = {
    "model": MODEL,
    "train": TRAIN,
    "other": MODEL.replace("loss", "lost"),
    "apart": "import os\n",
}


def test_an_edit_lints_the_file_and_those_that_asked_about_it(tmp_path, monkeypatch, anew):
    project(tmp_path, monkeypatch, **TWO)
    linted(True)
    assert anew == ["model.py", "other.py"]
    for name, text, expected in (
        ("apart", "import sys\n", []),
        ("other", TWO["other"] + "\n", ["other.py"]),
        ("train", TWO["train"] + "\n", ["model.py"]),
        ("apart", "from model import loss\n", ["model.py"]),
    ):
        Path(f"{name}.py").write_text(text)
        del anew[:]
        linted(True)
        assert anew == expected


def test_an_edit_asks_the_cache_what_other_files_mention(tmp_path, monkeypatch, anew):
    project(tmp_path, monkeypatch, **TWO)
    expected = linted(True)
    asked = []
    answer = Contents._asked
    monkeypatch.setattr(
        Contents, "_asked", lambda self, question: asked.append(question) or answer(self, question)
    )
    Path("model.py").write_text(f"{MODEL}\n")
    assert [r.violations for r in linted(True)] == [r.violations for r in expected]
    assert anew == ["model.py", "other.py", "model.py"]
    assert asked == []
    Path("model.py").write_text(f"{MODEL}\n\n@jax.checkpoint\ndef another(x):\n    return x\n")
    assert linted(True) == linted(False)
    assert Question("another", "model") in asked


def test_what_concerns_no_rule_is_not_read_again_until_it_changes(tmp_path, monkeypatch, anew):
    monkeypatch.setattr(file_states, "GRANULARITY_NS", 0)
    home = project(tmp_path, monkeypatch, **TWO)
    read = []
    candidate = LintRun._candidate
    monkeypatch.setattr(
        LintRun, "_candidate", lambda self, found: read.append(found.path) or candidate(self, found)
    )

    def now_read():
        del read[:]
        linted(True)
        return read

    assert now_read() == ["apart.py", "model.py", "other.py", "train.py"]
    assert now_read() == ["model.py", "other.py"]
    Path("apart.py").write_text(MODEL)
    del anew[:]
    assert now_read() == ["apart.py", "model.py", "other.py"]
    assert anew == ["apart.py"]
    Path("apart.py").write_text("import sys\n")
    assert now_read() == ["apart.py", "model.py", "other.py"]
    assert now_read() == ["model.py", "other.py"]
    # What the rules look for counts as well.
    Path("below").mkdir()
    Path("below/pyproject.toml").write_text('[tool.jaxresid]\nselect = ["JXR2"]\n')
    Path("below/loop.py").write_text("import jax\n\njax.lax.scan(f, x, y)\n")
    assert now_read() == ["below/loop.py", "model.py", "other.py"]
    assert now_read() == ["model.py", "other.py"]
    Path("below/pyproject.toml").write_text('[tool.jaxresid]\nselect = ["ALL"]\n')
    assert now_read() == ["below/loop.py", "model.py", "other.py"]
    # In another checkout only the content counts.
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    for file in copy.rglob("*.py"):
        os.utime(file, ns=(1, 1))
    monkeypatch.chdir(copy)
    assert now_read() == ["below/loop.py", "model.py", "other.py"]


def test_what_changes_while_it_is_read_is_read_again(tmp_path, monkeypatch, anew):
    project(tmp_path, monkeypatch, **TWO)
    candidate = LintRun._candidate

    def edited(self, found):
        outcome = candidate(self, found)
        Path("apart.py").write_text(MODEL)
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(LintRun, "_candidate", edited)
        linted(True)
    del anew[:]
    linted(True)
    assert anew == ["apart.py"]


def test_states_know_what_is_new(tmp_path):
    files = {name: tmp_path / name for name in ("b.py", "a.py")}
    for file in files.values():
        file.write_text("x")
    future = 10**20  # so that all edits were long ago
    question = Question("x")
    states = FileStates(files, None, future)
    states.add({question: frozenset(files)})
    assert states.answer(question) == (files["b.py"], files["a.py"])  # as they are in the project
    assert states.answer(Question("y")) is None
    stored = states.as_json({question})
    assert not states.is_as_stored
    assert FileStates(files, stored, future).is_as_stored
    assert FileStates(files, stored, future).answer(question) == states.answer(question)
    assert not FileStates({"a.py": files["a.py"]}, stored, future).is_as_stored
    known = FileStates(files, stored, future)
    known.add_irrelevant("a.py", "remat")
    assert known.is_irrelevant("a.py", "remat")
    assert not known.is_as_stored
    files["b.py"].write_text("y")
    assert not FileStates(files, stored, future).is_as_stored


def test_another_checkout_has_nothing_to_lint(tmp_path, monkeypatch, anew):
    home = project(tmp_path, monkeypatch, **TWO)
    first = linted(True)
    assert {r.path for v in first[0].violations for r in v.related} == {str(home / "train.py")}
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(home, copy)
    for file in copy.rglob("*.py"):
        os.utime(file, ns=(1, 1))
    monkeypatch.chdir(copy)
    del anew[:]
    assert linted(True) == linted(False)
    assert anew == ["model.py", "other.py"]  # those without the cache
    del anew[:]
    (copy / "below").mkdir()
    monkeypatch.chdir(copy / "below")
    (other,) = linted(True, [".."])
    assert {r.path for v in other.violations for r in v.related} == {str(copy / "train.py")}
    assert anew == []


def test_what_changes_while_it_is_linted_is_not_kept(tmp_path, monkeypatch):
    project(tmp_path, monkeypatch, **TWO)
    content = LintRun.content

    def edited(self, raw, path, at):
        Path("train.py").write_text("import model\n")
        return content(self, raw, path, at)

    with monkeypatch.context() as patch:
        patch.setattr(LintRun, "content", edited)
        linted(True)
    Path("train.py").write_text(TWO["train"])
    assert linted(True) == linted(False)
    assert any(v.code == "JXR101" for r in linted(True) for v in r.violations)


@pytest.mark.parametrize(
    "stored",
    [
        None,
        3,
        {},
        {"files": {"a.py": 3}, "answers": []},
        {"files": {"a.py": [None, "digest"]}, "answers": []},
        {"files": {}, "answers": [[1, 2, 3], None]},
    ],
)
def test_states_of_another_shape_are_none(tmp_path, stored):
    file = tmp_path / "a.py"
    file.write_text("x")
    states = FileStates({"a.py": file}, stored, 0)
    assert states.answers == {}
    assert not states.holds({"files": {}, "questions": [["x", None, False, "digest"]]})
    assert not states.holds({"files": {"a.py": "digest"}, "questions": []})
    assert not states.holds([])
    assert states.holds({"files": dict(states.digests), "questions": []})
