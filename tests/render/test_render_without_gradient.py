"""How programs that take no gradient are shown: no word of passes, residuals or checkpoints."""

import io
from typing import get_args

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

import jaxresid
from jaxresid.render.diff.words import headline
from jaxresid.render.in_editor import report_text
from jaxresid.render.notebook.report import report_html
from jaxresid.render.page.document import page_document
from jaxresid.render.report.compiled import render_compiled
from jaxresid.render.report.overview import parts
from jaxresid.render.report.rows import View
from jaxresid.render.report.text import render_report
from jaxresid.render.style import words
from jaxresid.render.svg import bands
from jaxresid.render.svg.icicle import icicle
from jaxresid.render.svg.timeline import timeline
from jaxresid.render.tables import floor
from jaxresid.render.traces.pprof import profile_of_report
from jaxresid.results import LiveKind, Pass
from jaxresid.results.plan.floor import FloorKind
from jaxresid.serialization.files import load, save
from tests.programs_without_gradient import report

WORDS = (
    "residual",
    "checkpoint",
    "backward",
    "forward",
    "optimizer",
    "update pass",
    "kept",
    "keeps",
)


def shown(value):
    console = Console(file=io.StringIO(), width=100)
    console.print(value)
    # The first line, which says what was asked, is another's.
    return console.file.getvalue().partition("\n")[2]


def without_words(text):
    assert not [word for word in WORDS if word in text]
    return text


@pytest.mark.parametrize("name", ["evaluate", "decode", "decode_donated", "generate"])
@pytest.mark.parametrize("verbose", [False, True])
def test_its_report(name, verbose):
    text = without_words(shown(render_report(report(name), View(verbose=verbose))))
    assert "live at the peak" in text
    assert ("arguments" in text, "outputs" in text) == (True, True)


def test_lines_and_arguments_at_the_peak_add_up_to_it():
    text = shown(render_report(report("evaluate"), View()))
    assert "argument q" in text
    lines = jaxresid.results.live_lines(report("evaluate").peak)
    assert sum(each.nbytes for each in lines) == report("evaluate").peak.nbytes


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("decode", "(cache) returned updated and not donated; outputs 16.00 MiB"),
        ("decode_donated", "(cache) donated and returned updated; outputs 16.00 MiB"),
    ],
)
def test_what_goes_in_and_out(name, words):
    assert words in " ".join(shown(render_report(report(name), View())).split())


def test_its_figures_in_an_editor():
    text = report_text(report("decode_donated"))
    assert without_words(text).endswith("MiB · gpu:h100")


def test_views_of_what_is_not_there_say_why():
    for view in ("residuals", "checkpoints"):
        text = shown(render_report(report("evaluate"), View(show=view)))
        assert f"no {view}: evaluate takes no gradient" in text


def test_its_chart_and_its_table_have_no_passes():
    text = shown(render_report(report("evaluate"), View(show="timeline")))
    assert "of all ops" not in text


def test_pictures_profile_page_and_notebook():
    result = report("decode", lifetimes=True)
    assert ">program</text>" not in without_words(timeline(result).partition("</style>")[2])
    with pytest.raises(ValueError, match="takes no gradient"):
        icicle(result)
    profile_of_report(result)
    html = report_html(result)
    assert "(cache) returned updated and not donated" in html
    assert not [word for word in ("residual", "checkpoint", "backward") if word in html]
    document = page_document(result)
    assert document["programs"][0]["values"]["kind"]
    assert "program" in document["tables"]["texts"]


def test_the_advice_of_xla_about_it_is_none_about_checkpoints():
    compiled = jaxresid.results.Compiled(
        on="tpu:v5e",
        policy="as-written",
        warnings=(jaxresid.results.CompilerWarning("memory-limit", nbytes=1, limit_nbytes=2),),
    )
    result = report("evaluate")
    text = shown(
        render_compiled(
            jaxresid.results.CompiledReport(
                target=result.target, jax=result.jax, places=(result.place,), compiled=(compiled,)
            )
        )
    )
    assert "Take a smaller batch, donate" in without_words(text)


def test_a_saved_report_is_the_same_and_differs_from_another(tmp_path):
    save(report("evaluate"), tmp_path / "before.json")
    before = load(tmp_path / "before.json")
    assert before == report("evaluate")
    same = jaxresid.diff(before, report("evaluate"))
    assert "No difference: peak" in without_words(headline(same))
    assert jaxresid.diff(before, report("generate")).peak_growth_nbytes < 0


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="no jax.new_ref")
def test_what_is_written_where_it_is_is_called_so():
    def fun(ref, x):
        ref[...] = ref[...] + x

    x = jnp.zeros((8, 8))
    written = jaxresid.inspect(fun, on="gpu:h100")(jax.new_ref(x), x)
    assert "(ref) changed in place" in " ".join(shown(render_report(written, View())).split())


def test_what_is_given_away_and_does_not_come_back_is_an_argument():
    x = jnp.zeros((8, 8))

    def reduced(x):
        return x.sum(0)

    lost = jaxresid.inspect(jax.jit(reduced, donate_argnums=0), on="gpu:h100")(x)
    assert " arguments\n" in shown(render_report(lost, View()))


def test_each_kind_of_value_and_part_has_its_word_and_its_fill():
    kinds = set(get_args(LiveKind))
    assert kinds <= set(parts._FILLS)
    assert kinds == set(words._KINDS) == set(bands._ORDER)
    assert set(get_args(FloorKind)) == set(floor._KINDS)
    assert set(get_args(Pass)) == set(words._PHASES)
