"""The corpus that the peak estimate is judged with: its sets, its programs, its rows, its score."""

from __future__ import annotations

import jax
import pytest

from tests.benchmarks.accuracy import collect, corpus, rows, score
from tests.benchmarks.accuracy.rows import Row
from tests.benchmarks.accuracy.split import SETS, set_of


def test_the_split_is_fixed():
    families = ["random:0", "random:3", "random:7", "zoo:mha", "zoo:gqa", "linen-scan"]
    found = [set_of(family) for family in families]
    assert found == ["fit", "conform", "test", "fit", "test", "fit"]
    counts = [sum(set_of(f"random:{seed}") == name for seed in corpus.SEEDS) for name in SETS]
    assert counts == [59, 19, 42]


def test_programs_have_names_of_their_own():
    names = [program.name for program in corpus.PROGRAMS]
    assert len(set(names)) == len(names)
    sets = {}
    for program in corpus.PROGRAMS:
        assert sets.setdefault(program.model, program.set) == program.set


@pytest.mark.integration
@pytest.mark.parametrize("seed", [0, 2, 5, 11])
def test_random_models_trace(seed):
    programs = [p for p in corpus.PROGRAMS if p.family == f"random:{seed}"]
    assert len(programs) == 2
    for program in programs:
        fun, args = program.build()
        if program.options["mode"] == "loss":
            fun = jax.value_and_grad(fun, argnums=program.options["argnums"])
        again = program.build()[1]
        jax.eval_shape(fun, *args)
        assert str(args) == str(again)
        assert sum(leaf.size for leaf in jax.tree.leaves(args)) > 1 << 20


def _row(program, place, estimate=2 << 30, peak=2 << 30, **more):
    values = {"has_loop": True, "is_checkpointed": True, "fits": True} | more
    return Row(program, place, "1", "xla", estimate_nbytes=estimate, peak_nbytes=peak, **values)


def test_collecting_goes_on_where_it_stopped(tmp_path):
    programs = [p for p in corpus.PROGRAMS if p.family.startswith("random:")][:3]
    asked = []

    def compile_for(program, places):
        asked.append((program.name, tuple(places)))
        failed = program is programs[0]
        error = {"peak": None, "error": "took longer than 60 s"} if failed else {}
        return [_row(program.name, place, **error) for place in places]

    collect.collect(programs[:2], ["gpu:h100"], tmp_path, compile_for)
    (file,) = tmp_path.iterdir()
    with file.open("a") as out:
        out.write('{"program": "cut o')  # as a killed collector leaves it
    out_of_date = file.read_text()
    asked.clear()
    collect.collect(programs, ["gpu:h100", "tpu:v5e"], tmp_path, compile_for)
    both = ("gpu:h100", "tpu:v5e")
    assert asked == [
        (programs[0].name, ("tpu:v5e",)),
        (programs[1].name, ("tpu:v5e",)),
        (programs[2].name, both),
    ]
    assert file.read_text().startswith(out_of_date)
    assert set(rows.read(file)) == {program.name for program in programs}
    asked.clear()
    collect.collect(programs, ["gpu:h100"], tmp_path, compile_for, again=True)
    assert [name for name, _ in asked] == [programs[0].name]


def test_the_score_of_known_rows():
    found = [
        _row("a/scan/none", "gpu:h100", estimate=11 << 30, peak=10 << 30),
        _row("a/scan/dots", "gpu:h100", estimate=8 << 30, peak=8 << 30),
        _row("a/scan/nothing", "gpu:h100", estimate=9 << 30, peak=6 << 30),
        _row("b/none", "gpu:h100", estimate=3 << 30, peak=4 << 30),
    ]
    figures = score.score(found)
    assert (figures.count, figures.pairs, figures.ranked) == (4, 3, 2)
    assert figures.median == pytest.approx((0.1 + 0.25) / 2)
    assert (figures.ninth, figures.worst) == (0.5, 0.5)
    assert figures.low == 0.25


def test_the_test_set_is_printed_only_when_asked(tmp_path, monkeypatch, capsys):
    for program in ("random:0/none", "random:3/none", "random:7/none"):
        rows.append(rows.file_of("gpu:h100", "1", tmp_path), _row(program, "gpu:h100"))
    for options, shown in ((), False), (("--test",), True):
        monkeypatch.setattr("sys.argv", ["score", "--folder", str(tmp_path), *options])
        score.main()
        printed = capsys.readouterr().out
        assert ("test set" in printed) == shown
        assert "random:0/none" in printed
        assert "random:3" not in printed and "random:7" not in printed


def test_what_no_figure_is_known_of_is_not_scored():
    row = _row("a/none", "tpu:v5e")
    assert score.is_scored(row)
    for other in ({"fits": False}, {"peak": None}, {"estimate": None}, {"peak": 1 << 20}):
        assert not score.is_scored(_row("a/none", "tpu:v5e", **other))
