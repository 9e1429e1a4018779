"""The report on one screen for real programs: every fixture, and models of released libraries."""

import importlib.util
import io
import json
import re
import sys

import pytest
from rich.console import Console

from jaxresid.base.text.safe_text import inert
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import inspection
from jaxresid.render.report.overview.code_lines import keeping_lines
from jaxresid.render.report.overview.parts import parts_of
from jaxresid.render.report.overview.screen import MOST_LINES
from jaxresid.render.report.rows import VIEWS, View
from jaxresid.render.report.text import render_report
from tests.pairs import in_turn
from tests.where import FIXTURES, TESTS

FILES = [path for path in sorted((FIXTURES / "inspect").glob("*.py")) if path.stem != "resharded"]
PROGRAMS = sorted((TESTS / "zoo" / "programs").glob("*.py"))


def module_of(path):
    """A module from its file; the test is skipped where a library of it is not installed."""
    for name in re.findall(r"^ *(?:import|from) (\w+)", path.read_text(), re.MULTILINE):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"not installed: {name}")
    spec = importlib.util.spec_from_file_location(f"shown_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def shown(report, width, view=View(), encoding="utf-8"):  # noqa: B008 (frozen)
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(render_report(report, view, encoding), crop=False)
    return inert(console.file.getvalue())


def is_one_word(line):
    """Whether a line is a single word of a command, which no shell lets us break."""
    return len(line.rstrip(" \\").split()) <= 2 and line.startswith("  ")


def check(report):
    """Hold a report against the JSON's figures, and its texts against their width and length."""
    value = json.loads(report.to_json())
    kept = value["totals"]["computed_nbytes"] + value["totals"]["host_nbytes"]
    found = keeping_lines(report)
    assert sum(row.nbytes for row in found.shown) + found.hidden_nbytes == kept
    peak = value["peak"]
    if peak is not None:
        assert sum(part.nbytes for part in parts_of(report)) == peak["nbytes"]
        top = [m for m in value["modules"] if len(m["path"]) <= 1]
        assert sum(m["peak_nbytes"] for m in top) == peak["nbytes"]
        spans = peak["phases"]
        assert [s["start"] for s in spans] == [0, *(s["stop"] for s in spans[:-1])]
        assert spans[-1]["stop"] == len(peak["curve"])
        assert max(s["nbytes"] for s in spans) == max(peak["curve"])
    assert (value["beyond_peak"] is not None) == (
        peak is not None and value["totals"]["computed_nbytes"] > peak["nbytes"]
    )
    if why := value["beyond_peak"]:
        assert sum(why.values()) == 2 * why["kept_nbytes"]
    for width in (60, 80, 120, 200):
        text = shown(report, width)
        lines = text.splitlines()
        assert all(len(line) <= width or is_one_word(line) for line in lines), text
        assert "\x1b" not in text
        assert lines[0].startswith(value["target"]["name"])
        before = next((i for i, line in enumerate(lines) if is_findings(line)), None)
        if width >= 80:
            above = lines[:before] if before is not None else lines[: last_of(lines)]
            assert len(above) <= MOST_LINES + 1, text
        for finding in value["findings"]:
            assert finding["name"] in text
        for view in VIEWS:
            lines = shown(report, width, View(show=view, top=None, all=True)).splitlines()
            assert all(len(line) <= width or is_one_word(line) for line in lines), view
    plain = shown(report, 80, encoding="ascii")
    assert not set("█▓▒░▚▤▥▦▁▂▃▄▅▆▇┤│▲") & set(plain)


def is_findings(line):
    count, _, rest = line.partition(" ")
    return count.isdigit() and rest in ("finding", "findings")


def last_of(lines):
    """The number of the first line of what follows the overview where there is no finding."""
    return next(i for i, line in enumerate(lines) if line.startswith(("jax ", "warning: ")))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("path", "on"),
    in_turn(FILES, ["gpu:h100", "tpu:v5e"]),
    ids=lambda value: getattr(value, "stem", value),
)
def test_fixtures(path, on, jax_version):
    if path.stem == "offload" and jax_version < (0, 7, 2):
        pytest.skip("until 0.7.2 the CPU has no pinned_host memory to put an argument in")
    module = module_of(path)
    names = [name.removesuffix("_inputs") for name in vars(module) if name.endswith("_inputs")]
    seen = 0
    for name in names:
        fun = getattr(module, name, None)
        # What `train_step` maps, which is not to be called by itself.
        is_mapped = (path.stem, name) == ("pmapped_step", "step")
        if not callable(fun) or name == "big" or is_mapped:
            continue
        inputs = getattr(module, f"{name}_inputs")()
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        check(inspection(Question(fun, args, on=on, name=f"{path.name}:{name}")).report)
        seen += 1
    assert seen or path.stem == "block"


@pytest.mark.zoo
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_zoo(path):
    module = module_of(path)
    for name in [n.removesuffix("_inputs") for n in vars(module) if n.endswith("_inputs")]:
        args = getattr(module, f"{name}_inputs")()
        fun = getattr(module, name)
        check(inspection(Question(fun, args, on="gpu:h100", name=f"{path.stem}:{name}")).report)
