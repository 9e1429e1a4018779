"""What is held against a limit, what is said of it, and at which line."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxresid
from jaxresid.advice.check.budgets import budget_findings, held, sentence
from jaxresid.advice.check.merged import merged
from jaxresid.base.errors import InputsError
from jaxresid.base.violations import Linted, Span, Violation
from jaxresid.cli.main import run
from jaxresid.results import Compiled, CompiledBuffer, Held, Interval, Limits, Location, Source
from tests.stages import without_stages

MIB = 2**20
SOURCE = Path(__file__).read_text().splitlines()
MODEL = """
import jax, jax.numpy as jnp

def layer(w, x):
    h = jnp.sin(x @ w)
    return jnp.cos(h)

def loss(ws, x):
    for i in range(8):
        x = layer(ws[i], x)
    return jnp.sum(x ** 2)

def loss_inputs(batch=4096):
    return jax.ShapeDtypeStruct((8, 256, 256), jnp.float32), jax.ShapeDtypeStruct(
        (batch, 256), jnp.float32)
"""
ARRAY = 4 * MIB  # of 4096 × 256 numbers in float32


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def scanned(ws, x):
    def body(x, w):
        return jnp.sin(jnp.sin(x @ w)), None

    return jnp.sum(lax.scan(body, x, ws)[0] ** 2)


@pytest.fixture(scope="module")
def report():
    return jaxresid.inspect(scanned)(f32(8, 256, 256), f32(4096, 256))


def peak_of(nbytes, limit, low=None, high=None, *, by="estimate", is_lower_bound=False):
    interval = None if low is None else Interval(low, high)
    return Held("peak", nbytes, limit, by, is_lower_bound, interval)


@pytest.mark.parametrize(
    ("figure", "holding", "fails"),
    [
        (peak_of(10, 16, 8, 15), "within", False),
        (peak_of(10, 15, 8, 15), "within", False),
        (peak_of(10, 14, 8, 15), "may be over", False),
        (peak_of(10, 10, 8, 15), "may be over", False),
        (peak_of(10, 9, 8, 15), "estimated over", True),
        (peak_of(10, 8, 8, 15), "estimated over", True),
        (peak_of(10, 7, 8, 15), "over", True),
        (peak_of(10, 10), "within", False),
        (peak_of(10, 9), "over", True),
        (peak_of(10, 12, is_lower_bound=True), "may be over", False),
        (peak_of(10, 9, is_lower_bound=True), "over", True),
        # A compiler's figure is one, whatever the estimate's range was.
        (peak_of(10, 14, 8, 15, by="xla"), "within", False),
        (peak_of(10, 9, 8, 15, by="xla"), "over", True),
    ],
)
def test_the_estimate_decides_and_its_range_is_said(figure, holding, fails):
    assert (figure.holding, figure.fails) == (holding, fails)
    said = sentence(figure, "loss")
    assert "`loss`" in said
    is_close = holding in ("estimated over", "may be over") and not figure.is_lower_bound
    assert ("--compile decides" in said) == is_close


def test_sentences():
    def said(limit, **given):
        return sentence(peak_of(10 * MIB, limit * MIB, 8 * MIB, 15 * MIB, **given), "loss")

    assert said(7) == (
        "the estimated peak of `loss` is 10.00 MiB (8.00 MiB to 15.00 MiB), 3.00 MiB over its"
        " budget of 7.00 MiB"
    )
    assert said(9) == (
        "the estimated peak of `loss` is 10.00 MiB (8.00 MiB to 15.00 MiB), 1.00 MiB over its"
        " budget of 9.00 MiB, which is inside the range (--compile decides)"
    )
    assert said(12) == (
        "the estimated peak of `loss` is 10.00 MiB (8.00 MiB to 15.00 MiB), below its budget of"
        " 12.00 MiB, which the range reaches over (--compile decides)"
    )
    assert said(7, by="xla") == (
        "XLA's peak of `loss` is 10.00 MiB, 3.00 MiB over its budget of 7.00 MiB"
    )


def test_what_is_kept_is_exact_and_counted_by_line(report):
    kept = report.totals.computed_nbytes
    assert held(report, Limits(kept_nbytes=kept))[0].holding == "within"
    (figure,) = held(report, Limits(kept_nbytes=kept - 1))
    assert figure.holding == "over"
    line = next(i for i, text in enumerate(SOURCE, 1) if "jnp.sin(jnp.sin(x @ w))" in text)
    first = figure.lines[0]
    assert (first.source.location.line, first.kinds) == (line, ("residual",))
    assert sum(each.nbytes for each in figure.lines) == kept
    assert [each.nbytes for each in figure.lines] == sorted(
        (each.nbytes for each in figure.lines), reverse=True
    )


def test_the_lines_of_a_peak_are_of_what_is_live_there(report):
    (figure,) = held(report, Limits(peak_nbytes=1))
    live = sum(v.nbytes for v in report.peak.live if v.location is not None)
    assert sum(each.nbytes for each in figure.lines) == live
    assert figure.nbytes == report.peak.nbytes
    assert figure.interval == report.peak.interval


def test_xlas_figure_decides_where_there_is_one(report):
    source = Source(Location("model.py", 3, 4, "layer"))
    buffers = (
        CompiledBuffer("temporary", 7 * MIB, source=source, residual="sin"),
        CompiledBuffer("argument", 9 * MIB, residual="ws"),
        CompiledBuffer("temporary", 5 * MIB, memory="host", source=source),
    )
    row = Compiled("gpu:h100", peak_nbytes=20 * MIB, cublas_peak_nbytes=24 * MIB, buffers=buffers)
    compiled = dataclasses.replace(report, compiled=(row,))
    (figure,) = held(compiled, Limits(peak_nbytes=22 * MIB))
    # The larger of its peaks: which matmuls it takes is decided where it can time them.
    assert (figure.nbytes, figure.by, figure.holding) == (24 * MIB, "xla", "over")
    assert [(each.source.location.line, each.nbytes) for each in figure.lines] == [(3, 7 * MIB)]
    assert held(compiled, Limits(peak_nbytes=24 * MIB))[0].holding == "within"
    failed = dataclasses.replace(report, compiled=(Compiled("gpu:h100", error="too slow"),))
    assert held(failed, Limits(peak_nbytes=1))[0].by == "estimate"


def test_a_peak_that_is_not_known_is_not_passed_over(report):
    unknown = dataclasses.replace(report, peak=None)
    with pytest.raises(InputsError, match="is not known, so it cannot be held against"):
        held(unknown, Limits(peak_nbytes=MIB))
    failed = dataclasses.replace(unknown, compiled=(Compiled("cpu", error="too slow"),))
    with pytest.raises(InputsError, match="too slow"):
        held(failed, Limits(peak_nbytes=MIB))
    assert held(unknown, Limits()) == ()


def test_a_line_is_of_several_calls_into_libraries():
    located = Location("model.py", 3, 4, "layer")
    library = Location("linear.py", 7, 0, "Linear")
    source = Source(located, library, None, "block/up")
    row = Compiled(
        "gpu:h100", peak_nbytes=9, buffers=(CompiledBuffer("temporary", 7, source=source),)
    )
    made = jaxresid.inspect(scanned)(f32(8, 256, 256), f32(8, 256))
    (said,) = budget_findings(dataclasses.replace(made, compiled=(row,)), Limits(peak_nbytes=1))
    assert said.finding.source == Source(located)


@pytest.mark.integration
def test_figures_of_a_trace_are_not_called_estimated(lab):
    _, out, _ = lab("model.py:loss", "--max-kept", "1MiB", "--max-peak", "1MiB")
    assert "figures: exact, of the trace for gpu:h100" in out
    assert "figures: estimated for gpu:h100" in out


def test_a_finding_names_lines_arguments_and_a_command(report):
    words = ("train", "--arg", "f32[4, 4]", "--on", "gpu:h100")
    asked = dataclasses.replace(
        report, next_step=dataclasses.replace(report.next_step, words=words)
    )
    (said,) = budget_findings(asked, Limits(peak_nbytes=MIB), "train")
    assert said.fails and said.finding.name == "peak-over-budget"
    assert "This line takes" in said.finding.message
    assert said.finding.help == (
        "`jaxresid plan train --arg 'f32[4, 4]' --on gpu:h100 --budget 1MiB` looks for checkpoints"
        " that fit"
    )
    assert said.finding.measured["peak_nbytes"] == report.peak.nbytes
    (nameless,) = budget_findings(report, Limits(peak_nbytes=MIB))
    assert "jaxresid plan" not in nameless.finding.help
    big = dataclasses.replace(
        report, peak=dataclasses.replace(report.peak, arguments_nbytes=report.peak.nbytes // 2)
    )
    (said,) = budget_findings(big, Limits(peak_nbytes=MIB))
    assert "Arguments are" in said.finding.message


@pytest.mark.parametrize("text", ["12", "4096", "0GiB", "much", "12 parsecs"])
def test_sizes_need_a_unit(text):
    with pytest.raises(InputsError, match="max_peak: "):
        jaxresid.check(scanned, max_peak=text)


def test_in_python():
    found = jaxresid.check(scanned, max_kept="1MiB", max_peak="1MiB")(f32(8, 256, 256), f32(8, 256))
    assert [v.code for v in found if v.code.startswith("JXR82")] == ["JXR821"]
    assert [v.severity for v in found if v.code == "JXR821"] == ["error"]


# -- the command


@pytest.fixture
def lab(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)

    def call(*argv, toml=None):
        if toml is not None:
            (tmp_path / "pyproject.toml").write_text(toml)
        capsys.readouterr()
        code = run(["check", *argv])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, without_stages(err)

    return call


TRAIN = (
    '[tool.jaxresid]\non = "gpu:h100"\n[tool.jaxresid.targets.train]\ntarget = "model.py:loss"\n'
)


def unsaid(err):
    """What is on stderr beside the stages of the work."""
    return "".join(line for line in err.splitlines(True) if "jaxresid: tracing " not in line)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("--max-kept", "1GiB"), 0),
        (("--max-kept", "32MiB"), 1),
        (("--max-peak", "1GiB"), 0),
        (("--max-peak", "32MiB"), 1),
        (("--max-peak", "32"), 2),
        (("--max-kept", "32"), 2),
        (("--max-peak", "much"), 2),
        (("--max-kept", "32MiB", "--exit-zero"), 0),
    ],
)
def test_exit_codes(lab, argv, code):
    assert lab("model.py:loss", *argv)[0] == code


@pytest.mark.parametrize("key", ["peak", "kept"])
def test_limits_of_a_table(lab, key):
    code, out, _ = lab("train", "-f", "json", toml=f'{TRAIN}max-{key} = "32MiB"\n')
    assert code == 1
    (found,) = [v for v in json.loads(out) if v["code"].startswith("JXR82")]
    assert found["name"] == f"{key}-over-budget"
    assert found["measured"]["limit_nbytes"] == 32 * MIB
    assert "`train`" in found["message"]
    # The command line overrides the table.
    assert lab("train", f"--max-{key}", "1GiB")[0] == 0


@pytest.mark.parametrize("value", ['"32"', '"no"', "32", '"0MiB"'])
def test_what_a_table_refuses(lab, value):
    code, out, err = lab("train", toml=f"{TRAIN}max-peak = {value}\n")
    assert (code, out) == (2, "")
    assert "pyproject.toml:5: `max-peak`" in err


def test_a_budget_inside_the_range_is_an_info(lab, report):
    code, out, _ = lab("model.py:loss", "-f", "json")
    kept = jaxresid.inspect(scanned)
    peak = kept(f32(8, 256, 256), f32(4096, 256)).peak
    assert (code, json.loads(out)) == (0, [])
    assert peak.low_nbytes < peak.nbytes < peak.high_nbytes
    between = f"{(peak.nbytes + peak.high_nbytes) // 2 // 1024}KiB"
    assert [
        (v.code, v.severity)
        for v in jaxresid.check(scanned, max_peak=between, max_kept="1GiB")(
            f32(8, 256, 256), f32(4096, 256)
        )
        if v.code == "JXR821"
    ] == [("JXR821", "info")]


@pytest.mark.parametrize(
    "comment", ["# noqa", "# jaxresid: ignore", "# jaxresid: ignore[JXR822]", "# noqa: JXR822"]
)
def test_no_comment_silences_a_limit(lab, tmp_path, comment):
    (tmp_path / "model.py").write_text(MODEL.replace("jnp.cos(h)", f"jnp.cos(h)  {comment}"))
    source = (tmp_path / "model.py").read_text().splitlines()
    code, out, _ = lab("model.py:loss", "--max-kept", "32MiB", "-f", "json")
    assert code == 1
    rows = [v["location"]["row"] for v in json.loads(out) if v["code"] == "JXR822"]
    assert any(comment in source[row - 1] or "jnp.sin" in source[row - 1] for row in rows)


def test_a_limit_needs_no_selecting_and_can_be_ignored(lab):
    toml = TRAIN.replace("on =", 'select = ["JXR1"]\non =') + 'max-kept = "32MiB"\n'
    assert lab("train", toml=toml)[0] == 1
    assert lab("train", "--select", "JXR801")[0] == 1
    assert lab("train", "--ignore", "JXR82")[0] == 0


def test_without_a_target_all_of_the_configuration_are_checked(lab):
    toml = (
        f'{TRAIN}max-kept = "32MiB"\n'
        '[tool.jaxresid.targets.small]\ntarget = "model.py:loss"\nbatch = [8, 16]\n'
        'max-kept = "8MiB"\non = "tpu:v5e"\n'
    )
    code, out, err = lab("-f", "json", toml=toml)
    assert (code, unsaid(err)) == (1, "")
    said = [(v["code"], v["measured"]["targets"], v["measured"]["on"]) for v in json.loads(out)]
    assert said == [("JXR822", "train", "gpu:h100")]
    code, out, err = lab("--max-kept", "64KiB", "-f", "json")
    said = sorted(v["measured"]["targets"] for v in json.loads(out))
    assert said == ["small --batch 16", "small --batch 8", "train"]
    assert all(v["measured"]["limit_nbytes"] == 64 * 1024 for v in json.loads(out))


def test_one_target_that_fails_leaves_the_others(lab):
    toml = f'{TRAIN}max-kept = "32MiB"\n[tool.jaxresid.targets.gone]\ntarget = "model.py:gone"\n'
    code, out, err = lab("-f", "concise", toml=toml)
    assert code == 2
    assert "JXR822" in out
    assert unsaid(err).startswith("jaxresid: error: gone: ")
    assert len(unsaid(err).splitlines()) <= 2


def test_without_a_target_and_without_targets(lab):
    code, out, err = lab()
    assert (code, out) == (2, "")
    assert err.startswith("jaxresid: error: there is no TARGET: give one, such as")
    code, out, err = lab("--config", "other.toml")
    assert code == 2
    _, _, err = lab(toml="[tool.jaxresid]\n")
    assert "pyproject.toml names none" in err


@pytest.mark.integration
def test_on_a_cpu_the_compiler_is_asked(lab):
    code, out, _ = lab("model.py:loss", "--on", "cpu", "--max-peak", "1MiB", "-f", "json")
    assert code == 1
    (found,) = [v for v in json.loads(out) if v["code"] == "JXR821"]
    assert found["measured"]["by"] == "xla"
    assert lab("model.py:loss", "--on", "cpu", "--max-peak", "1GiB")[0] == 0


# -- several targets as one


def violation(code, message, row=1, path="a.py"):
    return Violation(code, "name", "warning", message, path, Span(row, 0, row, 1))


def test_findings_of_several_targets():
    same = violation("JXR801", "it is useless")
    over = violation("JXR821", "the peak of `train` is over", 2)
    lines = {None: ("x", "y")}
    joined = merged(
        [
            ("train", (Linted("b.py", (violation("JXR801", "z", path="b.py"),), lines),)),
            ("train", (Linted("a.py", (over, same), lines),)),
            ("eval", (Linted("a.py", (same,), lines),)),
        ]
    )
    assert [linted.path for linted in joined] == ["a.py", "b.py"]
    assert [(v.message, v.measured["targets"]) for v in joined[0].violations] == [
        ("it is useless (targets train, eval)", "train, eval"),
        ("the peak of `train` is over", "train"),
    ]
    assert joined[0].lines == lines
