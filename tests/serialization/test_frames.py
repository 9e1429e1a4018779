"""Results as DataFrames, and the residuals of a report summed by what they have in common."""

import builtins
import dataclasses
import re
import types

import pytest

import jaxresid
from jaxresid.results import (
    Aval,
    Compiled,
    CompiledReport,
    Computed,
    Configuration,
    Constant,
    FrontRow,
    Location,
    OomBuffer,
    OomReport,
    Residual,
    Selection,
    Source,
    Sweep,
    SweepRow,
    Timing,
)
from jaxresid.serialization.dataframe import columns_of
from jaxresid.serialization.residual_table import KEYS, grouped, residual_rows
from tests.render.made_by_hand import COMPARISON, GIB, PLAN
from tests.render.test_render import REPORT

MIB = 1024**2


def layer(i, line=7, code="x @ w", nbytes=MIB, name=None):
    source = Source(Location("m.py", line, 4, "f", code), scope=f"layers_{i}/attn")
    origin = Computed("dot_general", source, name=name)
    return Residual(Aval("int8", (nbytes,), 1), origin)


def report(*residuals):
    return dataclasses.replace(REPORT, residuals=residuals)


def keys(groups):
    return {row.keys: (row.nbytes, row.count) for row in groups.rows}


class TestGroups:
    def test_lines_are_summed_biggest_first(self):
        groups = report(layer(0, 7), layer(1, 8), layer(2, 8), layer(3, 8)).group_by("line")
        assert [row.keys for row in groups.rows] == [("m.py:8",), ("m.py:7",)]
        assert [(row.nbytes, row.count, row.share) for row in groups.rows] == [
            (3 * MIB, 3, 0.75),
            (MIB, 1, 0.25),
        ]
        assert groups.rows[0].code == "x @ w"
        assert groups.nbytes == 4 * MIB

    def test_repeated_layers_are_one_module(self):
        groups = report(layer(0), layer(1), layer(12)).group_by("module")
        assert keys(groups) == {("layers_*/attn",): (3 * MIB, 3)}
        assert groups.rows[0].code == ""

    def test_several_keys(self):
        groups = report(layer(0, name="a"), layer(1), layer(2)).group_by("name", "dtype")
        assert keys(groups) == {(None, "int8"): (2 * MIB, 2), ("a", "int8"): (MIB, 1)}

    def test_what_is_in_memory_anyway_counts_if_asked(self):
        kept = report(layer(0), Residual(Aval("int8", (9,), 1), Constant()))
        assert keys(kept.group_by("kind")) == {("computed",): (MIB, 1)}
        assert keys(kept.group_by("kind", all=True)) == {
            ("computed",): (MIB, 1),
            ("constant",): (9, 1),
        }

    @pytest.mark.parametrize("key", KEYS)
    @pytest.mark.parametrize("all", [False, True])
    def test_every_key_sums_to_all_of_it(self, key, all):
        groups = REPORT.group_by(key, all=all)
        wanted = [r for r in REPORT.residuals if all or r.origin.kind == "computed"]
        assert groups.nbytes == sum(r.nbytes for r in wanted)
        assert sum(row.count for row in groups.rows) == len(wanted)
        assert sum(row.share for row in groups.rows) == pytest.approx(1)

    def test_of_nothing(self):
        assert report().group_by("line").rows == ()
        assert report(layer(0, nbytes=0)).group_by("line").rows[0].share == 0

    @pytest.mark.parametrize(
        ("by", "said"),
        [
            (("linee",), "group_by cannot group by 'linee'; did you mean `line`?; use line, file,"),
            (("line", 3), "group_by cannot group by 3; use line, file,"),
            ((), "group_by needs at least one of line, file,"),
        ],
    )
    def test_other_keys_are_refused(self, by, said):
        with pytest.raises(jaxresid.InputsError) as caught:
            REPORT.group_by(*by)
        assert str(caught.value).startswith(said)

    def test_it_prints(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        report(layer(0, 7, "y = " + "x" * 99), layer(1, 8)).group_by("line").print()
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["MiB", "share", "values", "line", "code"]
        assert lines[1].split()[1:6] == ["50.0%", "1", "m.py:7", "y", "="]
        assert lines[2].split()[1:] == ["50.0%", "1", "m.py:8", "x", "@", "w"]
        assert lines[1].endswith("x…")
        assert max(map(len, lines)) <= 80
        assert lines == [line.rstrip() for line in lines]
        assert lines[3] == "2.00 MiB in all of model:loss"

    @pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
    @pytest.mark.parametrize("by", [("line",), ("module", "dtype", "shape"), KEYS[:4]])
    def test_no_line_is_wider_than_the_terminal(self, by, width, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", str(width))
        REPORT.group_by(*by).print()
        assert max(map(len, capsys.readouterr().out.splitlines())) <= width

    def test_text_of_the_user_acts_on_no_terminal(self, capsys):
        report(layer(0, code="\x1b]0;x")).group_by("line").print()
        assert "\x1b" not in capsys.readouterr().out


def test_a_row_of_each_residual():
    rows = residual_rows(REPORT)
    assert len(rows) == len(REPORT.residuals)
    for row, residual in zip(rows, REPORT.residuals, strict=True):
        assert (row.nbytes, row.shape, row.kind) == (
            residual.nbytes,
            residual.aval.shape,
            residual.origin.kind,
        )
    first = next(row for row in rows if row.kind == "computed")
    assert (first.file, first.line, first.function) == ("model.py", 31, "attention")
    assert first.code == "p = jax.nn.softmax(scores, axis=-1)"
    assert (first.primitive, first.module, first.phase) == ("exp", "layers_0/attn", "backward")
    assert first.library == "/env/site-packages/jax/_src/nn/functions.py:641"


class TestDataFrames:
    @pytest.fixture(autouse=True)
    def pandas(self):
        return pytest.importorskip("pandas")

    def test_a_report_has_a_row_for_each_residual(self):
        frame = REPORT.to_dataframe()
        assert list(frame.columns) == [f.name for f in dataclasses.fields(jaxresid.ResidualRow)]
        assert frame.shape[0] == len(REPORT.residuals)
        kept = frame[(frame.kind == "computed") & (frame.memory == "device")]
        assert kept.nbytes.sum() == REPORT.totals.computed_nbytes
        assert frame.line.dtype == "Int64"  # and not 31.0 where another residual has none
        by_line = kept.groupby(["file", "line"]).nbytes.sum()
        for (file, line), nbytes in by_line.items():
            (group,) = (g for g in REPORT.group_by("line").rows if g.keys == (f"{file}:{line}",))
            assert group.nbytes >= nbytes

    def test_columns_have_their_types_without_rows(self):
        frame = report().to_dataframe()
        assert frame.shape == (0, len(dataclasses.fields(jaxresid.ResidualRow)))
        assert frame.nbytes.dtype == "Int64"

    def test_a_difference_has_a_row_for_each_line(self):
        more = dataclasses.replace(REPORT, residuals=(*REPORT.residuals, layer(0)))
        difference = jaxresid.diff(REPORT, more)
        frame = difference.to_dataframe()
        assert len(frame) == len(difference.lines) > 0
        grown = frame.kept_after_nbytes.sum() - frame.kept_before_nbytes.sum()
        assert grown == difference.kept_growth_nbytes == MIB
        (line,) = frame[frame.kept_after_nbytes > frame.kept_before_nbytes].after_line
        assert line == 7

    def test_an_out_of_memory_report_has_a_row_for_each_buffer(self):
        source = Source(Location("m.py", 7, 4, "f", "x @ w"))
        buffers = (OomBuffer("temporary", 3 * MIB, source=source), OomBuffer("argument", MIB))
        frame = OomReport("too-large", buffers=buffers).to_dataframe()
        assert list(frame.nbytes) == [3 * MIB, MIB]
        assert list(frame.source_location_code) == ["x @ w", None]

    def test_a_comparison_has_a_row_for_each_policy(self):
        timing = Timing(0.5, 1.5, 1.4, 1.6, 5, 1e-7, 1e-6)
        row = dataclasses.replace(
            COMPARISON.rows[1], measured=timing, compiled=(Compiled("cpu", peak_nbytes=7),)
        )
        frame = dataclasses.replace(COMPARISON, rows=(row, *COMPARISON.rows[2:])).to_dataframe()
        assert list(frame.policy)[:2] == ["as-written", "everything_saveable"]
        assert frame.measured_ratio[0] == 1.5
        assert frame.xla_peak_nbytes[0] == 7
        assert frame.peak_nbytes.dtype == "Int64"
        assert frame.pareto.dtype == "boolean"
        assert frame.error[len(frame) - 1].startswith("the policy bad")
        assert frame.peak_nbytes.isna().tolist()[-1]

    def test_a_sweep_has_a_row_for_each_program(self):
        rows = (
            SweepRow("f", "none", 8, "cpu", "whole", compiled=Compiled("cpu", fits=True)),
            SweepRow("f", "none", None, "cpu", "whole", error="no"),
        )
        frame = Sweep(PLAN.target, PLAN.jax, "whole", (), (), (), (), rows).to_dataframe()
        assert frame.batch.tolist()[0] == 8
        assert frame.xla_fits.tolist()[0] is True
        assert frame.error.tolist() == [None, "no"]

    def test_a_compiled_report_has_a_row_for_each_place(self):
        both = (Compiled("cpu", peak_nbytes=3), Compiled("tpu:v5e", error="no"))
        frame = CompiledReport(PLAN.target, PLAN.jax, (), both).to_dataframe()
        assert frame.on.tolist() == ["cpu", "tpu:v5e"]
        assert frame.peak_nbytes.tolist()[0] == 3

    def test_a_plan_has_a_row_for_each_that_no_other_beats(self):
        front = FrontRow(Configuration(8, 2), "m.py:1: none", GIB, "fits", 3, 0.1, chosen=True)
        selection = Selection(Configuration(8, 2), (front,))
        frame = dataclasses.replace(PLAN, selection=selection).to_dataframe()
        assert frame.batch.tolist() == [8]
        assert frame.microbatches.tolist() == [2]
        assert frame.peak_nbytes.tolist() == [GIB]
        assert frame.chosen.tolist() == [True]

    def test_groups_have_a_column_for_each_key(self):
        frame = report(layer(0), layer(1)).group_by("line", "dtype").to_dataframe()
        assert list(frame.columns) == ["line", "dtype", "nbytes", "share", "count", "code"]
        assert frame.values.tolist() == [["m.py:7", "int8", 2 * MIB, 1.0, 2, "x @ w"]]


@pytest.mark.parametrize("kind", [jaxresid.ComparisonRow, SweepRow, FrontRow, Compiled])
def test_no_two_columns_have_one_name(kind):
    names = [column.name for column in columns_of(kind)]
    assert len(names) == len(set(names))
    assert all(re.fullmatch("[a-z_]+", name) for name in names)


def test_without_pandas_one_line_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(jaxresid.JaxresidError) as caught:
        REPORT.to_dataframe()
    assert str(caught.value) == (
        "to_dataframe needs pandas, which is not installed: pip install pandas"
    )


class Printer:
    """What IPython hands to `_repr_pretty_`."""

    def __init__(self, *stack, max_width=79):
        self.stack, self.max_width, self.said = list(stack), max_width, ""

    def text(self, text):
        self.said += text


SWEEP = Sweep(PLAN.target, PLAN.jax, "whole", (), ("none",), (), (PLAN.place,), ())
COMPILED = CompiledReport(PLAN.target, PLAN.jax, (PLAN.place,), (Compiled("tpu:v5p"),))
DIFFERENCE = jaxresid.diff(REPORT, report(*REPORT.residuals[2:]))
SHOWN = [REPORT, COMPARISON, PLAN, SWEEP, COMPILED, DIFFERENCE, REPORT.group_by("line")]


@pytest.mark.parametrize("value", SHOWN, ids=lambda value: type(value).__name__)
class TestShown:
    def test_rich_prints_the_text(self, value, capsys, monkeypatch):
        import rich.console

        monkeypatch.setenv("COLUMNS", "80")
        value.print()
        printed = capsys.readouterr().out
        rich.console.Console(highlight=False).print(value, crop=False)
        assert capsys.readouterr().out == printed
        assert len(printed.splitlines()) > 1

    def test_ipython_prints_the_text(self, value, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "79")
        value.print()
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        value._repr_pretty_(printer := Printer(1), cycle=False)
        assert [line.rstrip() for line in printer.said.splitlines()] == printed

    def test_inside_other_values_it_is_its_repr(self, value):
        value._repr_pretty_(printer := Printer(1, 2), cycle=False)
        assert printer.said == repr(value)

    def test_a_notebook_shows_html(self, value):
        html = value._repr_html_()
        assert re.search(r"<(table|pre)\b", html)
        assert "<script" not in html


def test_ipython_itself(capsys):
    pretty = pytest.importorskip("IPython.lib.pretty")
    for value in SHOWN:
        assert len(pretty.pretty(value).splitlines()) > 1
    assert pretty.pretty([REPORT]) == f"[{REPORT!r}]"


def test_html_of_a_name_is_no_html():
    target = dataclasses.replace(COMPARISON.target, name="<script>x</script>")
    assert "<script" not in dataclasses.replace(COMPARISON, target=target)._repr_html_()


def test_what_has_no_rows_is_refused():
    from jaxresid.serialization.dataframe import dataframe

    with pytest.raises(TypeError, match="SimpleNamespace has no rows"):
        dataframe(types.SimpleNamespace())


def test_grouped_is_what_group_by_gives():
    assert grouped(REPORT, ("line",)) == REPORT.group_by("line")
