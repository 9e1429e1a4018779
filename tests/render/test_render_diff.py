"""Differences as text, Markdown and JSON."""

import io
import json
from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

import jaxresid
from jaxresid.base.text.units import format_bytes
from jaxresid.render.diff.markdown import code, render_markdown
from jaxresid.render.diff.text import render_difference, render_differences
from jaxresid.results import (
    CheckpointDifference,
    LineDifference,
    Location,
    Totals,
    ValueDifference,
)
from tests.schemas import schema, validate
from tests.small import f32


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def wider(w, x):
    x = x + jnp.cos(x)
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def checkpointed(w, x):
    return jnp.sum(jax.checkpoint(lambda w, x: jnp.tanh(jnp.tanh(x @ w)))(w, x) ** 2)


def reported(function):
    found = jaxresid.inspect(function, on="gpu:h100")(f32(64, 64), f32(128, 64))
    return replace(found, target=replace(found.target, name="model.py:loss"))


SAME = jaxresid.diff(reported(loss), reported(loss), labels=("main", "working tree"))
MORE = jaxresid.diff(reported(loss), reported(wider), labels=("main", "working tree"))
LESS = jaxresid.diff(reported(wider), reported(checkpointed), labels=("main", "working tree"))


def shown(difference, width=80, **options):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(render_difference(difference, **options))
    return console.file.getvalue()


def test_what_is_the_same_is_two_lines():
    assert shown(SAME, width=100).splitlines() == [
        f"No difference: peak about {format_bytes(SAME.after.peak_nbytes)}, keeps"
        f" {format_bytes(SAME.after.totals.computed_nbytes)}.",
        f"model.py:loss: main → working tree · on gpu:h100 · jax {jax.__version__}"
        " · with its gradient",
    ]


def test_the_first_sentence_says_what_changed_and_where():
    text = shown(MORE)
    line = wider.__code__.co_firstlineno + 1
    first = " ".join(text.split()).partition(". ")[0]
    peak = format_bytes(MORE.after.peak_nbytes)
    kept = f"keeps {format_bytes(MORE.kept_growth_nbytes)} more (+"
    assert first.startswith(f"The peak stays at about {peak}; for information: {kept}")
    assert f"at tests/render/test_render_diff.py:{line} in wider" in first
    assert f"tests/render/test_render_diff.py:{line} wider" in text
    assert "+ f32[128,64]" in text


def test_what_is_less_has_a_minus():
    text = " ".join(shown(LESS).split())
    peak, kept = LESS.peak_growth_nbytes, LESS.kept_growth_nbytes
    assert text.startswith(f"The peak is {format_bytes(peak)} higher (+")
    assert f"; keeps {format_bytes(-kept)} less (−" in text
    assert "1 checkpoint added" in text
    assert "recompute" in text


def many(count):
    """A difference of so many lines of code and checkpoints, with long names."""
    checkpoint = LESS.checkpoints[0].after
    lines = [
        LineDifference(
            before=None,
            after=Location("a/long/path/to/model.py", i, 0, "Transformer.block.attend", "x" * 200),
            scope="trunk/layers/*/attention",
            kept_before_nbytes=0,
            kept_after_nbytes=(count - i) << 20,
            peak_after_nbytes=5 << 20,
            values=tuple(
                ValueDifference("added", 12, p, None, None, None, SAME_AVAL)
                for p in ("tanh", "sub", "mul", "exp")
            ),
        )
        for i in range(count)
    ]
    checkpoints = [
        CheckpointDifference(checkpoint, replace(checkpoint, policy="dots_saveable"), ("policy",))
    ] * count
    return replace(MORE, lines=tuple(lines), checkpoints=tuple(checkpoints))


SAME_AVAL = reported(loss).residuals[0].aval


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("difference", [SAME, MORE, LESS, many(1), many(7), many(40)])
def test_it_is_a_screen(difference, width):
    rows = shown(difference, width).splitlines()
    assert max(map(len, rows)) <= width
    assert len(rows) <= 24


def test_all_shows_all():
    text = shown(many(40), all=True)
    assert text.count("model.py:") >= 40
    assert "--all" not in text
    short = shown(many(40))
    assert "--all shows them" in short
    assert "model.py:39" not in short


def test_several_are_one_below_the_other():
    console = Console(file=io.StringIO(), width=80)
    console.print(render_differences([SAME, MORE]))
    text = console.file.getvalue()
    assert text.index("No difference") < text.index("\n\n") < text.index("The peak")


@pytest.mark.parametrize("difference", [SAME, MORE, LESS, many(2)])
def test_json(difference, tmp_path):
    value = json.loads(difference.to_json())
    validate(value, "diff")
    difference.save(tmp_path / "diff.json")
    assert jaxresid.load(tmp_path / "diff.json", jaxresid.Difference) == difference


def test_every_key_is_required():
    def objects(value):
        if isinstance(value, dict):
            if "properties" in value:
                yield value
            for each in value.values():
                yield from objects(each)
        elif isinstance(value, list):
            for each in value:
                yield from objects(each)

    for each in objects(schema("diff")):
        assert each["required"] == list(each["properties"])
        assert each["additionalProperties"] is False


def test_markdown_has_a_heading_a_table_and_folded_details():
    text = render_markdown([MORE, SAME])
    first, second = text.split("\n\n### ")
    assert first.startswith("### `model.py:loss`: the peak stays at about ")
    assert first.index("| peak (estimate) | ") < first.index("| kept | ")
    assert first.count("<details>") == first.count("</details>") >= 1
    assert second.startswith("`model.py:loss`: no difference")
    assert "<details>" not in second


def test_markdown_of_a_table_has_as_many_cells_everywhere():
    for table in render_markdown([many(60), LESS]).split("\n\n"):
        rows = [row for row in table.splitlines() if row.startswith("|")]
        cells = {row.replace("\\|", "").count("|") for row in rows}
        assert len(cells) <= 1


@pytest.mark.parametrize(
    "bad", ["a | b", "`x`", "<img src=x>", "```", "@everyone", "[a](b)", "\n# H"]
)
def test_nothing_of_the_code_is_markup(bad):
    line = replace(MORE.lines[0], after=replace(MORE.lines[0].after, code=bad), scope=bad)
    side = replace(MORE.before, label=bad)
    text = render_markdown([replace(MORE, lines=(line,), before=side, notes=(bad,))])
    prose = "".join(part for i, part in enumerate(text.split("`")) if i % 2 == 0)
    assert "<img" not in prose.replace("\\<", "")
    assert "\n# H" not in text
    assert "@everyone" not in prose
    rows = [row for row in text.splitlines() if row.startswith("| +")]
    assert all(row.replace("\\|", "").count("|") == 6 for row in rows)


def with_sides(difference, **figures):
    """A difference in whose two sides the figures are these pairs."""
    before, after = (
        replace(side, **{name: pair[i] for name, pair in figures.items()})
        for i, side in enumerate((difference.before, difference.after))
    )
    return replace(difference, before=before, after=after)


NOTHING = Totals(*(0,) * len(fields(Totals)))


def test_more_is_kept_is_a_matter_of_the_peak():
    higher = with_sides(MORE, peak_nbytes=(100, 200))
    unknown = with_sides(MORE, peak_nbytes=(None, None), peak_by=(None, None))
    kept = f"eeps {format_bytes(MORE.kept_growth_nbytes)} more"
    assert f"information: k{kept}" in shown(MORE)
    assert "The peak is 100 B higher (+100.0%)" in shown(higher)
    assert shown(unknown).startswith(f"K{kept}")
    assert "information" not in shown(higher) + shown(unknown)
    assert "peak (" not in shown(unknown) + render_markdown([unknown])


def test_a_few_flops_are_no_difference():
    few = with_sides(SAME, recompute_flops=(2, 0), total_flops=(10**6, 10**6))
    assert few.is_same
    beside = replace(few, lines=MORE.lines)
    assert "FLOP" not in shown(beside) + render_markdown([beside])
    many = with_sides(SAME, recompute_flops=(2, 0), total_flops=(100, 98))
    assert not many.is_same
    assert "recomputes 2 FLOP less" in shown(many)


def test_what_there_is_nothing_of_has_no_row():
    nothing = with_sides(
        replace(SAME, found=LESS.found, checkpoints=LESS.checkpoints),
        totals=(NOTHING, NOTHING),
        peak_nbytes=(None, None),
        peak_by=(None, None),
        recompute_flops=(0, 0),
    )
    for text in (shown(nothing), render_markdown([nothing])):
        assert "0 B" not in text
        assert "?" not in text
        assert "| main |" not in text


def test_a_line_that_differs_at_the_peak_alone_has_the_bytes_there():
    line = replace(
        LESS.lines[0],
        kept_before_nbytes=0,
        kept_after_nbytes=0,
        peak_before_nbytes=1024,
        peak_after_nbytes=3072,
    )
    text = render_markdown([replace(LESS, lines=(line,))])
    assert "| +2.00 KiB | 1.00 KiB | 3.00 KiB |" in text
    assert "<summary>1 line</summary>" in text


def test_inline_code():
    assert code("x") == "`x`"
    assert code("a`b") == "``a`b``"
    assert code("`a`") == "`` `a` ``"
    assert code("a|b") == "`a\\|b`"
    assert code("") == ""


def test_print(capsys):
    SAME.print()
    assert capsys.readouterr().out.startswith("No difference")
