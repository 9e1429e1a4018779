"""Saved results that were damaged: refused by one error in one line, or shown in every way."""

import contextlib
import copy
import dataclasses
import io
import json
import random
import re
import warnings
from typing import get_args

import pytest
from rich.console import Console

import jaxresid
from jaxresid.base.option_types import PictureView, ReportView, ResidualKey
from jaxresid.render.diff.markdown import render_markdown
from jaxresid.render.report.split import render_split
from jaxresid.results import (
    Collective,
    Comparison,
    Compiled,
    CompiledBuffer,
    CompiledReport,
    Difference,
    Lifetime,
    Lifetimes,
    OomReport,
    PhaseSpan,
    Plan,
    ProgramPoint,
    Report,
    Split,
    Sweep,
    SweepRow,
    display,
)
from jaxresid.serialization.encoding import json_document
from tests.render.made_by_hand import COMPARISON, PLAN
from tests.render.test_render import BASIS, CHECKPOINTED, REPORT, SPLIT
from tests.where import DATA

FITTING = Compiled(
    "gpu:h100",
    peak_nbytes=5 << 30,
    fits=True,
    capacity_nbytes=80 << 30,
    seconds=2.5,
    estimate_nbytes=4 << 30,
    buffers=(CompiledBuffer("temporary", 1 << 20, 2, "f32[9]"),),
    collectives=(Collective("all-gather", 64, 3 << 20),),
)
FAILED = Compiled("tpu:v5e", error="no such device")
ROWS = (
    SweepRow("loss", "none", 8, "gpu:h100", "whole", kept_nbytes=7, compiled=FITTING),
    SweepRow("loss", "none", None, "tpu:v5e", "whole", error="no such device"),
)


def with_lifetimes(report):
    """The report with what is live over the program, and the passes of its curve."""
    peak = report.peak
    count = len(peak.curve)
    spans = (PhaseSpan("forward", 0, 1, 5), PhaseSpan("backward", 1, count, peak.nbytes))
    points = [ProgramPoint("tanh", peak.source, phase, 5) for phase in ("forward", "backward")]
    live = peak.live[0]
    values = (Lifetime(0, 2, live, "argument"), Lifetime(1, 2, live, "residual"))
    lifetimes = Lifetimes("", tuple(points), values, 1, peak.nbytes)
    peak = dataclasses.replace(peak, phases=spans)
    return dataclasses.replace(report, peak=peak, lifetimes=(lifetimes,))


def documents():
    oom = jaxresid.oom(DATA / "logs/jax-13428.txt")
    sweep = Sweep(PLAN.target, PLAN.jax, "whole", (), ("none",), (8,), (PLAN.place,), ROWS)
    compiled = CompiledReport(PLAN.target, PLAN.jax, (PLAN.place,), (FITTING, FAILED))
    difference = jaxresid.diff(REPORT, CHECKPOINTED)
    values = (DRAWN, CHECKPOINTED, COMPARISON, PLAN, SPLIT, oom, sweep, compiled, difference)
    return {f"{type(v).__name__}-{i}": json_document(v) for i, v in enumerate(values)}


DRAWN = with_lifetimes(REPORT)
DOCUMENTS = documents()
ANYTHING = (
    *(-1, 0, 1, -5, 10**30, 2**63, 1e308, -0.5, float("nan"), float("inf"), None, True, "", "x"),
    *("\0\x1b[31m\n", [], {}, [None], [1], {"a": 1}, "argument", 999_999, ["a"], "A" * 300),
)
WORDS = ("backward", "f32", "argument", "gpu", "tpu:v5e", "step", "function", "\u202e\0\n", "")


def parts(value):
    """Each object or list with a key or an index, wherever it is."""
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, item in items:
        yield value, key
        yield from parts(item)


def other(value, alike, draw):
    """A value of the same type, most often, that is not the right one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        more = (-value - 1, value * 10**6, value + 1, 0, -1, 10**30, 2**63, None, 10**400)
        return draw.choice(more)
    if isinstance(value, float):
        return draw.choice((-value, 0, value * 1e6, 1e308, -1e308, 5e-324, None, 10**400))
    if isinstance(value, str):
        return draw.choice((value[::-1], value + "x", draw.choice(alike), draw.choice(WORDS)))
    if isinstance(value, list):
        return draw.choice(([], value * 2, value[:-1], value[::-1], value[:1] * 5))
    if isinstance(value, dict) and value:
        return {**value, draw.choice(list(value)): value[draw.choice(list(value))]}
    return draw.choice((draw.choice(alike), 0, "x", [], 1.5))


def damaged(text, draw):
    """The text of a document with something wrong in it."""
    kind = draw.randrange(30)
    if kind < 2:
        return text + text if kind else text[: draw.randrange(len(text))]
    document = json.loads(text)
    everything = list(parts(document))
    for _ in range(draw.choice((1, 1, 2, 4))):
        holder, key = draw.choice(everything)
        with contextlib.suppress(KeyError, IndexError):  # it is gone
            kind, value = draw.randrange(20), holder[key]
            if kind == 0:
                del holder[key]
            elif kind < 3:
                holder[key] = copy.deepcopy(draw.choice(ANYTHING))
            else:
                alike = [o[k] for o, k in everything if k == key and type(o) is dict and k in o]
                alike = [v for v in alike if isinstance(v, str) or value is None] or ["x"]
                holder[key] = copy.deepcopy(other(value, alike, draw))
    return json.dumps(document)


def renderings(value):
    """Functions that show a value, each in another way."""
    if isinstance(value, Split):
        yield lambda: json_document(value)
        yield lambda: Console(width=80).print(render_split(value, source=True))
        return
    yield value.to_json
    yield lambda: repr(value)
    yield value.print
    yield lambda: display.to_text(value, 40)
    yield value._repr_html_
    yield value.to_dataframe
    if not isinstance(value, OomReport | Sweep):
        yield value.to_page
    if isinstance(value, Report):
        yield from (lambda view=v: value.print(view=view) for v in get_args(ReportView))
        yield from (lambda by=b: value.group_by(by)._repr_html_() for b in get_args(ResidualKey))
        yield from (lambda view=v: drawn(value.to_svg, view) for v in get_args(PictureView))
        yield lambda: drawn(value.to_pprof)
        yield lambda: drawn(value.to_perfetto)
        yield lambda: value.print(verbose=True)
        yield lambda: jaxresid.diff(REPORT, value).print()
    elif isinstance(value, Comparison | Plan):
        yield lambda: drawn(value.to_svg)
    elif isinstance(value, OomReport):
        yield lambda: value.print(verbose=True)
    elif isinstance(value, Difference):
        yield lambda: value.print(all=True)
        yield lambda: render_markdown([value])


def drawn(write, *options):
    """A picture or a trace, if there is anything to draw."""
    try:
        write(*options)
    except ValueError as e:
        if not re.match("no (timeline|icicle|frontier): |the stacks of|there are no life", str(e)):
            raise


def shown_or_refused(text, file):
    """Whether a document is loaded; it is shown in every way then."""
    file.write_text(text)
    try:
        value = jaxresid.load(file)
    except jaxresid.DocumentError as e:
        if not (str(e).startswith(str(file)) and str(e).isprintable()):
            raise
        return False
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas, of complex numbers in columns
        for show in renderings(value):
            show()
    return True


@pytest.mark.parametrize("name", DOCUMENTS)
def test_damaged(name, tmp_path):
    draw = random.Random(name)
    count = 6 if name.startswith("Report") else 15
    file = tmp_path / "it.json"
    loaded = [shown_or_refused(damaged(DOCUMENTS[name], draw), file) for _ in range(count)]
    assert not all(loaded)


@pytest.mark.integration
@pytest.mark.parametrize("name", DOCUMENTS)
def test_damaged_much(name, tmp_path):
    draw = random.Random(f"much {name}")
    for _ in range(100):
        shown_or_refused(damaged(DOCUMENTS[name], draw), tmp_path / "it.json")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_undamaged(name, tmp_path):
    assert shown_or_refused(DOCUMENTS[name], tmp_path / "it.json")


def refused(value, tmp_path, **changes):
    file = tmp_path / "it.json"
    file.write_text(json_document(dataclasses.replace(value, **changes)))
    with pytest.raises(jaxresid.DocumentError) as caught:
        jaxresid.load(file)
    return str(caught.value).removeprefix(f"{file} is no valid ")


def test_parts_that_do_not_go_together(tmp_path):
    peak = DRAWN.peak
    count = len(peak.curve)
    for at in (count, -1, 10**20):
        said = refused(DRAWN, tmp_path, peak=dataclasses.replace(peak, curve_at=at))
        assert said == (
            f"Report: peak has parts that do not go together: curve_at is {at}, of {count} points"
        )
    span = peak.phases[-1]
    for start, stop in ((span.start, count + 1), (-1, span.stop), (span.stop, span.start)):
        spans = (dataclasses.replace(span, start=start, stop=stop),)
        said = refused(DRAWN, tmp_path, peak=dataclasses.replace(peak, phases=spans))
        assert said.endswith(f"phases[0] is from {start} to {stop}, of {count} points")
    spans = (dataclasses.replace(span, phase="sideways"),)
    said = refused(DRAWN, tmp_path, peak=dataclasses.replace(peak, phases=spans))
    assert said.startswith('Report: peak.phases[0].phase is "sideways", not one of "forward", ')
    lifetimes = dataclasses.replace(DRAWN.lifetimes[0], at=2)
    said = refused(DRAWN, tmp_path, lifetimes=(lifetimes,))
    assert said == ("Report: lifetimes[0] has parts that do not go together: at is 2, of 2 points")
    basis = dataclasses.replace(BASIS, compilers={})
    said = refused(PLAN, tmp_path, place=dataclasses.replace(PLAN.place, intervals=basis))
    assert said.endswith("do not go together: compilers has none")
    basis = dataclasses.replace(BASIS, others={"x": "1"})
    said = refused(PLAN, tmp_path, place=dataclasses.replace(PLAN.place, intervals=basis))
    assert said.endswith("do not go together: others has 'x', which compilers has not")


@pytest.mark.parametrize("number", [2**96, -(2**96), 10**400, 1e30])
def test_numbers_that_are_too_large(tmp_path, number):
    document = json.loads(DOCUMENTS["Report-0"])
    document["peak"]["nbytes"] = number
    (tmp_path / "it.json").write_text(json.dumps(document))
    with pytest.raises(
        jaxresid.DocumentError, match=r"peak.nbytes is .* not an integer below 2\^96"
    ):
        jaxresid.load(tmp_path / "it.json")


def test_a_device_is_not_read():
    with pytest.raises(jaxresid.DocumentError, match="cannot read /dev/zero: it is a device"):
        jaxresid.load("/dev/zero")
