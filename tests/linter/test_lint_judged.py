"""The table of judgements on released packages, and how a linter is scored with it."""

import textwrap
from collections import Counter

import pytest

from jaxresid.linter.rules import INDEX
from jaxresid.linter.text.suppress import UNSUPPRESSABLE
from tests.benchmarks import lint_judged
from tests.benchmarks.checkpoint_references import references
from tests.benchmarks.lint_judged import (
    HALVES,
    LATER,
    LATEST,
    NEWEST,
    TABLE,
    Judged,
    Silent,
    Table,
    half,
    read,
    said,
    score,
)

ERROR = "import jax\nf = jax.checkpoint(g, policy=jax.checkpoint_policies.dots_saveable())\n"


@pytest.mark.parametrize(
    ("directory", "n_packages"), [(TABLE, 45), (LATER, 25), (LATEST, 17), (NEWEST, 57)]
)
def test_a_table_is_whole(directory, n_packages):
    table = read(directory)
    judged = {j.package for j in table.findings} | {s.package for s in table.silent}
    assert judged <= set(table.packages)
    assert len(table.packages) == n_packages
    assert {half(p) for p in table.packages} == set(HALVES)
    assert len({j.key for j in table.findings}) == len(table.findings)
    codes = {e.code for e in INDEX} | UNSUPPRESSABLE | {"OTHER"}
    assert {j.code for j in table.findings} | {c for s in table.silent for c in s.wanted} <= codes
    assert {j.judgement for j in table.findings} <= {"right", "arguable", "wrong"}
    drawn = Counter(s.package for s in table.silent)
    assert all(drawn[p] <= table.population[p] for p in drawn)
    assert all(r.reason for r in (*table.findings, *table.silent))


def test_what_was_sampled():
    first, *others = map(read, (TABLE, LATER, LATEST, NEWEST))
    assert len(first.silent) == 150
    for table in others:
        assert Counter(s.package for s in table.silent) == table.population  # all of them
    names = [p.partition("==")[0] for t in (first, *others) for p in t.packages]
    assert len(set(names)) == len(names)


def test_score():
    table = Table(
        tuple(
            Judged("p==1", "a.py", row, "JXR101", judgement, "so")
            for row, judgement in ((1, "right"), (2, "right"), (3, "wrong"), (4, "arguable"))
        ),
        (
            Silent("p==1", "b.py", 10, 12, ("JXR403",), "missed, and found since"),
            Silent("p==1", "b.py", 20, 20, ("JXR401",), "missed"),
            Silent("p==1", "b.py", 30, 30, (), "fine"),
            Silent("q==1", "b.py", 30, 30, ("JXR101",), "of another package"),
        ),
        {"p==1": 9, "q==1": 7},
    )
    now = {("a.py", row, "JXR101") for row in (1, 2, 3, 4)} | {("b.py", 12, "JXR403")}
    result = score(table, {"p==1": now | {("b.py", 20, "JXR106")}}, ["p==1"])
    assert result.judgements == {"right": 2, "wrong": 1, "arguable": 1}
    assert result.unjudged == (("p==1", "b.py", 12, "JXR403"), ("p==1", "b.py", 20, "JXR106"))
    assert (result.found, result.missed, result.sampled, result.population) == (1, 1, 3, 9)
    assert result.precision[0] == 2 / 3
    # One missed of three sampled: three of nine.
    assert result.recall[0] == 2 / (2 + 3)
    assert result.recall[1] < result.recall[0] < result.recall[2]
    fewer = score(table, {"p==1": {("a.py", 1, "JXR101")}}, ["p==1"])
    assert (fewer.judgements["right"], fewer.found, fewer.missed) == (1, 0, 2)
    nothing = score(table, {"p==1": set()}, ["p==1"])
    assert nothing.recall == (0, *lint_judged.wilson(0, 2))


def test_an_interval_holds_the_share():
    """The bounds are the shares from which the count is z standard deviations off."""
    for count, total in ((0, 5), (3, 5), (49, 50), (5, 5)):
        for bound in lint_judged.wilson(count, total):
            off = (count / total - bound) ** 2
            assert off == pytest.approx(1.96**2 * bound * (1 - bound) / total, abs=1e-12)
    assert lint_judged.wilson(0, 0) == (0.0, 1.0)


def test_what_is_said_of_a_tree(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "m.py").write_text(ERROR)
    (tmp_path / "loop.py").write_text(  # an info
        "import jax\ny = jax.lax.scan(jax.checkpoint(step), c, xs)\n"
    )
    assert said(tmp_path) == {("pkg/m.py", 2, "JXR202")}


def test_references():
    source = """\
    import functools
    import jax
    import orbax.checkpoint as ocp
    from jax import checkpoint_policies as cp, remat as again
    from flax import linen as nn
    from .mine import checkpoint

    remat = nn.remat
    TABLE = {"dots": cp.dots_saveable, "none": None}


    @jax.checkpoint
    def f(x):
        return again(g)(x)


    @functools.partial(
        jax.checkpoint,
        policy=cp.dots_saveable,
    )
    def h(x):
        return remat(Block)(x)


    ocp.checkpoint(x)
    checkpoint(f)
    f.checkpoint(x)
    """
    found = [(r.row, r.end_row, r.name) for r in references(textwrap.dedent(source))]
    assert found == [
        (8, 8, "flax.linen.remat"),
        (9, 9, "jax.checkpoint_policies.dots_saveable"),
        (12, 12, "jax.checkpoint"),
        (14, 14, "jax.remat"),
        (17, 20, "jax.checkpoint"),
        (22, 22, "flax.linen.remat"),
    ]
    assert references("def f(:") == ()


def test_main_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lint_judged", str(tmp_path)])
    monkeypatch.setattr(lint_judged, "read", lambda *_: Table((), (), {"p==1": 1}))
    with pytest.raises(SystemExit, match=r"p==1; --fetch downloads them"):
        lint_judged.main()
    (tmp_path / "p==1").mkdir()
    (tmp_path / "p==1" / "m.py").write_text(ERROR)
    lint_judged.main()
    assert "  not judged: p==1 m.py:2 JXR202" in capsys.readouterr().out
