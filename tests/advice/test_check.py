"""`jaxresid check`: what each code is given for, where it is placed, and how it is shown."""

import dataclasses
import functools
import importlib
import itertools
import json
import pkgutil
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import jax
import jax.numpy as jnp
import jsonschema
import programs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import jaxresid
from fixtures.inspect import block, gpt, offload, stack8
from jaxresid.advice.check import rules
from jaxresid.advice.check.check import checked
from jaxresid.advice.check.rules import traced_rules
from jaxresid.advice.check.source_lines import FindingPlacer, definition
from jaxresid.advice.check.verdict_rules import verdict_finding
from jaxresid.cli.main import run
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.findings.collect import collected
from jaxresid.inspector.findings.registry import about_code
from jaxresid.inspector.report import inspection
from jaxresid.linter.rule import SECTIONS, documentation
from jaxresid.linter.rules import INDEX, KNOWN, TRACED
from jaxresid.linter.run.files import LintRun
from jaxresid.render.lint import FORMATS
from jaxresid.results import Checkpoint, Finding, Location, Source, Verdict
from jaxresid.settings.config import Options, load
from tests.stages import without_stages
from tests.where import ROOT

MIB = 1024**2
MARK = re.compile(r"# ! (JXR\d+)$")
cp = jax.checkpoint_policies

# One target per code that check shares with the linter; the lines to be reported are marked.
PLACE = (
    "jaxresid: figures are for gpu:h100, the default, as JAX sees no accelerator here;"
    " with its gradient (mode program: without)\n"
)
MODEL = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

cp = jax.checkpoint_policies


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layer(w, x):
    return jnp.sin(jnp.cos(jnp.sin(x @ w)))


def net(ws, x):
    for w in ws:
        x = layer(w, x)
    return jnp.sum(x**2)


def earns(ws, x):
    for w in ws:
        x = jax.checkpoint(layer)(w, x)
    return jnp.sum(x**2)


def whole(ws, x):
    return jax.checkpoint(net)(ws, x)  # ! JXR101


def last_stage(ws, x):
    for w in ws[:-1]:
        x = layer(w, x)
    return jnp.sum(jax.checkpoint(layer)(ws[-1], x))  # ! JXR102


def stacked(ws, x):
    return lax.scan(lambda x, w: (layer(w, x), None), x, ws)[0]


def around_loop(ws, x):
    return jnp.sum(jax.checkpoint(stacked)(jnp.stack(ws), x))  # ! JXR103


def unwrapped(ws, x):
    x, _ = lax.scan(lambda x, w: (layer(w, x), None), x, jnp.stack(ws))  # ! JXR109
    return jnp.sum(x)


def allowed(ws, x):
    for w in ws:
        x = jax.checkpoint(layer, prevent_cse=False)(w, x)  # ! JXR401
    return jnp.sum(x**2)


def inner(ws, x):
    for w in ws:
        x = jax.checkpoint(layer, policy=cp.dots_saveable)(w, x)  # ! JXR205
    return x


def overridden(ws, x):
    for _ in range(3):
        x = jax.checkpoint(inner)(ws[:3], x)
    return jnp.sum(x**2)


def named(w, x):
    h = checkpoint_name(x @ w, "hidden")
    return checkpoint_name(jnp.sin(jnp.cos(jnp.sin(h))), "spare")  # ! JXR302


def misnamed(ws, x):
    for w in ws:
        x = jax.checkpoint(layer, policy=cp.save_only_these_names("hiden"))(w, x)  # ! JXR301
    return jnp.sum(x**2)


def spare(ws, x):
    for w in ws:
        x = jax.checkpoint(named, policy=cp.save_only_these_names("hidden"))(w, x)
    return jnp.sum(x**2)


def after(w, x):
    return checkpoint_name(jax.nn.gelu(x @ w), "after") @ w.T  # ! JXR305


def in_vain(ws, x):
    policy = cp.save_only_these_names("after")
    x, _ = lax.scan(
        lambda x, w: (jax.checkpoint(after, policy=policy)(w, x), None), x, jnp.stack(ws)
    )
    return jnp.sum(x**2)


def train_step(ws, x):
    grads = jax.grad(unwrapped)(ws, x)
    return [w - 0.1 * g for w, g in zip(ws, grads)]


def example_inputs():
    return [f32(256, 256)] * 8, f32(4096, 256)
"""
SHARED = {
    "whole": "JXR101",
    "last_stage": "JXR102",
    "around_loop": "JXR103",
    "unwrapped": "JXR109",
    "allowed": "JXR401",
    "overridden": "JXR205",
    "misnamed": "JXR301",
    "spare": "JXR302",
    "in_vain": "JXR305",
    "train_step": "JXR109",
}


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "JAXRESID_OUTPUT_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


class Lab:
    """A directory with models, and the command."""

    def __init__(self, path, capture):
        self.path = path
        self._capture = capture
        self._number = itertools.count()

    def model(self, source=MODEL):
        """A new file, since a module is imported once."""
        path = self.path / f"model{next(self._number)}.py"
        path.write_text(source)
        return path.name

    def example(self, example):
        """A new file with an example, and the other files that it needs."""
        name = self.model(example.source)
        for path, text in example.files.items():
            (self.path / path).write_text(text.replace("model.py", name))
        return name

    def __call__(self, *argv):
        """Exit code, stdout and stderr."""
        self._capture.readouterr()
        code = run(["check", *argv])
        out, err = self._capture.readouterr()
        assert "Traceback" not in err
        return code, out, without_stages(err)

    def found(self, *argv):
        code, out, err = self(*argv, "-f", "json")
        assert err == ""
        items = json.loads(out)
        assert code == int(any(item["severity"] != "info" for item in items))
        return items

    def codes(self, *argv):
        return [item["code"] for item in self.found(*argv)]


@pytest.fixture
def lab(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return Lab(tmp_path, capsys)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def marked(source, code):
    lines = enumerate(source.split("\n"), 1)
    return [row for row, line in lines if (m := MARK.search(line)) and m[1] == code]


# -- what each code is given for


@pytest.mark.parametrize("function", SHARED)
def test_codes_of_the_linter(lab, function):
    code = SHARED[function]
    # By the rules for a GPU, which computes sines again, this one costs memory as well.
    on = "tpu:v5e" if function == "spare" else "gpu:h100"
    items = lab.found(f"{lab.model()}:{function}", "--on", on)
    assert [(i["code"], i["location"]["row"]) for i in items] == [
        (code, row) for row in marked(MODEL, code)
    ]
    for item in items:
        assert item["name"] == KNOWN[code]
        assert item["severity"] == next(e.severity for e in INDEX if e.code == code)
        assert item["help"] and not item["message"].endswith(".")
        assert item["measured"]["profile"] == on[:3]
        assert item["measured"]["on"] == on
        assert item["measured"]["jax"] == jax.__version__


def test_a_checkpoint_that_earns_its_keep_is_no_finding(lab):
    assert lab(f"{lab.model()}:earns") == (0, "All checks passed!\n", PLACE)


def examples(kind):
    for rule in traced_rules():
        for index, example in enumerate(getattr(rule, kind)):
            yield pytest.param(rule, example, id=f"{rule.code}-{kind}-{index}")


def needs_host_arguments(example, jax_version):
    is_needed = "pinned_host" in example.source and "memory_kind" in example.source
    if is_needed and jax_version < (0, 7, 2):
        pytest.skip("until 0.7.2 the CPU has no pinned_host memory to put an argument in")


@pytest.mark.parametrize(("rule", "example"), examples("bad"))
def test_bad_examples_are_reported_where_marked(lab, rule, example, jax_version):
    needs_host_arguments(example, jax_version)
    place = ("--on", example.on) if example.on else ()
    given = ("--select", rule.code, *place, *example.options)
    items = lab.found(f"{lab.example(example)}:loss", *given)
    rows = [i for i, line in enumerate(example.source.split("\n"), 1) if line.endswith("# !")]
    assert [(i["code"], i["location"]["row"]) for i in items] == [(rule.code, r) for r in rows]
    assert rows
    for item in items:
        assert (item["name"], item["severity"]) == (rule.name, rule.severity)
        assert item["help"] and item["message"] and "\n" not in item["message"]
        assert any(key.endswith("nbytes") for key in item["measured"])


@pytest.mark.parametrize(("rule", "example"), examples("good"))
def test_good_examples_are_silent(lab, rule, example, jax_version):
    needs_host_arguments(example, jax_version)
    assert lab.codes(f"{lab.example(example)}:loss", *example.options) == []


@pytest.mark.parametrize("rule", traced_rules(), ids=lambda r: r.code)
def test_paperwork(rule):
    assert re.fullmatch(r"JXR8\d\d", rule.code)
    assert rule.__module__.rpartition(".")[2] == rule.name.replace("-", "_")
    summary, sections = documentation(rule)
    assert summary.endswith(".") and len(summary) <= 100
    assert set(sections) == set(SECTIONS) - {"Is the fix safe?"}
    assert rule.bad and rule.good
    assert rule.info().traced and rule.info().default


def test_the_index_agrees_with_the_rules():
    modules = {m.name for m in pkgutil.iter_modules(rules.__path__)}
    assert modules == {r.name.replace("-", "_") for r in traced_rules()}
    assert [(r.code, r.name, r.severity) for r in traced_rules()] == [e[:3] for e in TRACED]
    assert len(KNOWN) == len(INDEX) + len(TRACED) == len(set(KNOWN.values()))


CHECKPOINT = Checkpoint(
    function="block",
    source=Source(Location("model.py", 7, 4, "loss")),
    policy=None,
    prevent_cse=True,
    calls=1,
    trips=8,
    kept_nbytes=18 * MIB,
    kept_without_nbytes=770 * MIB,
    recompute_flops=42_950_000_000,
    recompute_fraction=0.238,
    peak_nbytes=812 * MIB,
    peak_without_nbytes=812 * MIB,
    ratio=0.0,
    verdict=Verdict.SAVES_NOTHING,
    reason="it wraps the whole loss",
    shape="whole",
)


@pytest.mark.parametrize(
    ("verdict", "shape", "policy", "name"),
    [
        (Verdict.EARNS, "whole", None, None),
        (Verdict.SAVES_NOTHING, "whole", None, "checkpointed-loss"),
        (Verdict.SAVES_NOTHING, "whole", "nothing_saveable", "checkpointed-loss"),
        (Verdict.SAVES_NOTHING, "whole", "dots_saveable", "useless-checkpoint"),
        (Verdict.SAVES_NOTHING, "last-stage", None, "checkpointed-last-stage"),
        (Verdict.SAVES_NOTHING, "around-loop", None, "checkpoint-around-loop"),
        (Verdict.SAVES_NOTHING, "trivial", None, "trivial-checkpoint"),
        (Verdict.SAVES_NOTHING, "nested", None, "useless-checkpoint"),
        (Verdict.SAVES_NOTHING, None, None, "useless-checkpoint"),
        (Verdict.COSTS_MEMORY, "whole", None, "checkpointed-loss"),
        (Verdict.COSTS_MEMORY, "whole", "dots_saveable", "costly-checkpoint"),
        (Verdict.COSTS_MEMORY, None, None, "costly-checkpoint"),
        (Verdict.UNDONE, None, None, "cse-allowed-outside-loop"),
        (Verdict.UNDONE, "nested", None, "cse-allowed-in-nested-checkpoint"),
        (Verdict.OVERRIDDEN, "nested", "dots_saveable", "ineffective-policy"),
        (
            Verdict.MATCHED_NOTHING,
            None,
            "save_only_these_names('a')",
            "undefined-checkpoint-name",
        ),
        (Verdict.MATCHED_NOTHING, None, "dots_saveable", "unmatched-policy"),
    ],
)
def test_the_code_of_a_verdict(verdict, shape, policy, name):
    given = {"verdict": verdict, "shape": shape, "policy": policy}
    prevents = verdict != Verdict.UNDONE  # else it is the compiler's doing, see test_barriers
    finding = verdict_finding(dataclasses.replace(CHECKPOINT, **given, prevent_cse=prevents))
    assert (finding and finding.name) == name
    assert finding is None or (finding.help and name in KNOWN.values())


def test_the_message_holds_the_evidence():
    finding = verdict_finding(CHECKPOINT)
    assert finding.message == (
        "the checkpoint of `block` saves nothing: it wraps the whole loss. The program keeps"
        " 770.00 MiB without it and 18.00 MiB with it; the peak stays at 812.00 MiB; 42.95 GFLOP"
        " are recomputed (23.8%)"
    )
    assert finding.measured["kept_without_nbytes"] == 770 * MIB
    assert finding.measured["peak_nbytes"] == 812 * MIB
    better = dataclasses.replace(CHECKPOINT, peak_nbytes=811 * MIB, recompute_flops=0)
    assert verdict_finding(better).message.endswith("the peak falls from 812.00 MiB to 811.00 MiB")
    worse = dataclasses.replace(
        CHECKPOINT, peak_nbytes=900 * MIB, recompute_flops=0, verdict=Verdict.COSTS_MEMORY
    )
    assert verdict_finding(worse).message.endswith("; the peak rises from 812.00 MiB to 900.00 MiB")


# -- the other findings of a trace


def names(fun, *args, **options):
    return [(v.name, v.severity) for v in jaxresid.check(fun, **options)(*args)]


def scanned(body, ws, x):
    return jnp.sum(lax.scan(body, x, ws)[0] ** 2)


WS, X = f32(8, 256, 256), f32(4096, 256)


def test_an_unwrapped_body_comes_with_its_figures():
    def body(x, w):
        return jnp.sin(jnp.cos(jnp.sin(x @ w))), None

    (found,) = jaxresid.check(functools.partial(scanned, body))(WS, X)
    array = 4096 * 256 * 4
    assert found.code == "JXR109"
    # The input of the matmul, and the cosines and sines that the derivatives need.
    assert found.measured["nbytes"] == 8 * 4 * array
    assert found.measured["carry_nbytes"] == 8 * array
    assert found.measured["trips"] == 8


LOOPS = """
import jax
import jax.numpy as jnp

def simulate(x, ws):
    return jax.lax.scan(lambda x, w: (jnp.sin(jnp.cos(jnp.sin(x @ w))), None), x, ws)[0]

def fold(body, x, ws):
    return jax.lax.scan(body, x, ws)[0]
"""


@pytest.mark.parametrize("is_own", [False, True])
def test_a_body_of_a_library_is_not_the_users_to_checkpoint(is_own, tmp_path, monkeypatch):
    """That of the user's is, whoever's the loop is."""
    (tmp_path / "site-packages").mkdir()
    name = f"loops_of_a_library_{is_own}"
    (tmp_path / "site-packages" / f"{name}.py").write_text(LOOPS)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    library = importlib.import_module(name)

    def body(x, w):
        return jnp.sin(jnp.cos(jnp.sin(x @ w))), None

    def loss(ws, x):
        x = library.fold(body, x, ws) if is_own else library.simulate(x, ws)
        return jnp.sum(x**2)

    (found,) = jaxresid.check(loss)(WS, X)
    assert found.code == "JXR109"
    assert ("jax.checkpoint(body" in found.help) == is_own
    assert (f"{name}.py:6 simulate" in found.help) != is_own


@pytest.mark.parametrize("policy", [None, cp.dots_saveable, cp.everything_saveable])
def test_a_checkpointed_body_is_not_unwrapped(policy):
    def body(x, w):
        return jnp.sin(jnp.cos(jnp.sin(x @ w))), None

    checkpointed = jax.checkpoint(body, policy=policy, prevent_cse=False)
    found = names(functools.partial(scanned, checkpointed), WS, X)
    assert ("unwrapped-loop-body", "info") not in found


def test_a_body_that_keeps_little_more_than_its_carry_is_fine():
    assert names(functools.partial(scanned, lambda x, w: (jnp.sin(x @ w), None)), WS, X) == []


@pytest.mark.parametrize(
    ("changed", "is_found"),
    [
        ({}, True),
        ({"nbytes": 100 * 1024 * MIB}, False),  # beside weights that dwarf it
        ({"temporaries_nbytes": 1024 * MIB}, False),  # something else makes the peak
    ],
)
def test_a_loop_is_worth_a_word_where_it_makes_the_peak(changed, is_found):
    def body(x, w):
        return jnp.sin(jnp.cos(jnp.sin(x @ w))), None

    found = inspection(Question(functools.partial(scanned, body), (WS, X)))
    peak = dataclasses.replace(found.report.peak, **changed)
    report = dataclasses.replace(found.report, peak=peak)
    said = [f.name for f in collected(about_code(found.subject, report), [])]
    assert said == ["unwrapped-loop-body"] * is_found


@pytest.mark.integration
def test_loops_of_the_fixtures():
    for fun, inputs in [
        (stack8.scan_none, stack8.scan_none_inputs()),
        (gpt.loss_scan, gpt.loss_scan_inputs()),
        (offload.plain, offload.plain_inputs()),
    ]:
        assert "unwrapped-loop-body" in [name for name, _ in names(fun, *inputs)]
    for form in ("scan_dots", "scan_dots_no_batch", "scan_nothing", "loop_none"):
        fun, inputs = getattr(stack8, form), getattr(stack8, f"{form}_inputs")()
        # Of their attention there is something to say.
        assert set(names(fun, *inputs)) <= {("attention-scores-at-peak", "info")}
    assert names(offload.offloaded, *offload.offloaded_inputs()) == []


def test_offloading_a_carry_as_it_leaves_moves_nothing():
    def policy(dst):
        return cp.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=["x"],
            offload_src="device",
            offload_dst=dst,
        )

    def entering(x, w):
        x = checkpoint_name(x, "x")
        return jnp.sin(jnp.cos(jnp.sin(x @ w))), None

    def leaving(x, w):
        return checkpoint_name(jnp.sin(jnp.cos(jnp.sin(x @ w))), "x"), None

    def found(body, dst="pinned_host"):
        remat = jax.checkpoint(body, policy=policy(dst), prevent_cse=False)
        return [name for name, _ in names(functools.partial(scanned, remat), WS, X)]

    assert "offload-without-effect" not in found(entering)
    assert "offload-without-effect" in found(leaving)


def test_a_name_that_only_one_of_two_policies_knows():
    def layer(w, x):
        return jnp.sin(jnp.cos(jnp.sin(checkpoint_name(x @ w, "hidden"))))

    def loss(ws, x, policy):
        for i in range(8):
            x = jax.checkpoint(layer, policy=policy)(ws[i], x)
        return jnp.sum(x**2)

    def found(policy):
        return [
            (v.code, v.measured["missing"])
            for v in jaxresid.check(lambda ws, x: loss(ws, x, policy))(WS, X)
            if "missing" in v.measured
        ]

    assert found(cp.save_only_these_names("hidden", "hiden")) == [("JXR301", ["hiden"])]
    assert found(cp.save_only_these_names("hidden")) == []
    # As an exception a name need not exist.
    assert found(cp.save_any_names_but_these("hiden")) == []


@pytest.mark.parametrize(
    ("policy", "unused"),
    [
        (cp.save_only_these_names("a"), ["b"]),
        (cp.save_only_these_names("a", "b"), []),
        (cp.save_any_names_but_these("b"), []),
        (cp.dots_saveable, ["a", "b"]),
        (cp.save_from_both_policies(cp.dots_saveable, cp.save_only_these_names("b")), ["a"]),
        (None, []),
    ],
)
def test_names_that_no_policy_is_for(policy, unused):
    def layer(w, x):
        return checkpoint_name(jnp.sin(jnp.cos(checkpoint_name(x @ w, "a"))), "b")

    def loss(w, x):
        return jnp.sum(jax.checkpoint(layer, policy=policy)(w, x) @ w)

    found = jaxresid.check(loss)(f32(256, 256), X)
    assert sorted(v.measured["name"] for v in found if v.code == "JXR302") == unused


def test_a_training_step():
    def step(ws, x):
        return ws - jax.grad(functools.partial(scanned, body))(ws, x)

    def body(x, w):
        return jnp.sin(jnp.cos(jnp.sin(x @ w))), None

    assert names(step, WS, X) == [("unwrapped-loop-body", "info")]
    inner, body = body, jax.checkpoint(body, policy=cp.dots_saveable)
    assert names(step, WS, X) == []
    body = inner
    assert names(jax.jit(step), WS, X) == [("unwrapped-loop-body", "info")]


# -- where


def test_the_span_is_the_call(lab):
    source = MODEL.replace(
        "    return jax.checkpoint(net)(ws, x)  # ! JXR101",
        '    "😀é"; return jax.checkpoint(\n        net\n    )(ws, x).sum()',
    )
    (item,) = lab.found(f"{lab.model(source)}:whole")
    row = source.split("\n").index('    "😀é"; return jax.checkpoint(') + 1
    assert item["location"] == {"row": row, "column": 18}
    assert item["end_location"] == {"row": row + 2, "column": 13}


@pytest.mark.integration
def test_paths_are_shown_as_the_linter_shows_them(lab, monkeypatch):
    name = lab.model()
    assert lab(f"{name}:whole", "-f", "concise")[1].startswith(f"{name}:")
    absolute = lab.path / name
    assert lab(f"{absolute}:whole", "-f", "concise")[1].startswith(f"{name}:")
    (lab.path / "elsewhere").mkdir()
    monkeypatch.chdir(lab.path / "elsewhere")
    out = lab(f"{absolute}:whole", "-f", "concise")[1]
    assert out.startswith(f"{absolute}:")
    (item,) = lab.found(f"{absolute}:whole")
    assert item["filename"] == str(absolute)


def placing(fun=block.checkpointed):
    return FindingPlacer(fun, "target", inspection(Question(jnp.sum, (f32(3),))).trace.frames)


def finding(location):
    return Finding("useless-checkpoint", "it is", Source(location), "remove it", {"nbytes": 3})


@pytest.mark.parametrize("location", [None, Location(jnp.__file__, 3, 0, "dot")])
def test_what_has_no_line_of_the_users_is_placed_at_the_target(location):
    file, violation = placing().violation(finding(location), {"profile": "cpu"})
    assert Path(file.absolute) == Path(block.__file__)
    line = Path(block.__file__).read_text().splitlines()[violation.span.row - 1]
    assert line[violation.span.column : violation.span.end_column] == line
    assert line.startswith("def checkpointed(")
    assert violation.noqa_rows == (violation.span.row,)
    assert violation.measured == {"nbytes": 3, "profile": "cpu"}
    where = f"{jnp.__file__}:3 dot" if location else None
    expected = f"it is (in {where}, called from here)" if where else "it is"
    assert violation.message == expected


@pytest.mark.parametrize("target", [jnp.sin, len, functools.partial(len)])
def test_a_target_without_source_is_placed_by_name(target):
    _, violation = FindingPlacer(target, "numpy:sin", placing()._frames).violation(
        finding(None), {}
    )
    assert violation.code == "JXR801"
    assert violation.span.row >= 1


def test_definitions():
    class Model:
        def __call__(self, x):
            return x

    assert definition(block.plain).function == "plain"
    assert definition(functools.partial(jax.jit(block.plain), 1)).function == "plain"
    assert definition(Model()).function.endswith("Model")
    assert definition(Model().__call__).function.endswith("Model.__call__")
    assert definition(len) is None


def test_a_location_on_every_kind_of_line(lab):
    source = (
        "import functools\n\n\n@functools.cache\n@functools.wraps(\n    len\n)\ndef f(x):\n"
        "    for y in (x, g(x)):\n        x = [\n            y\n        ]\n    return x\n"
    )
    (lab.path / "lines.py").write_text(source)
    place = FindingPlacer(len, "len", inspection(Question(jnp.sum, (f32(3),))).trace.frames)
    path = str(lab.path / "lines.py")

    def at(row, column=None):
        violation = place.violation(finding(Location(path, row, column, "f")), {})[1]
        span = violation.span
        return (span.row, span.column, span.end_row, span.end_column), violation.noqa_rows

    assert at(4) == ((8, 0, 8, 9), (8,))  # a decorator of it
    assert at(8) == ((8, 0, 8, 9), (8,))
    assert at(9) == ((9, 4, 9, 23), (9,))
    assert at(9, 17) == ((9, 17, 9, 21), (9,))
    assert at(11) == ((10, 8, 12, 9), (10, 11, 12))
    assert at(11, 12) == ((11, 12, 11, 13), (10, 11, 12))
    assert at(2) == ((2, 0, 2, 1), (2,))
    assert at(99) == ((99, 0, 99, 1), (99,))
    (lab.path / "broken.py").write_text("def f(:\n")
    path = str(lab.path / "broken.py")
    assert at(1) == ((1, 0, 1, 7), (1,))


# -- comments, configuration, options


WHOLE = "    return jax.checkpoint(net)(ws, x)"


@pytest.mark.integration
@pytest.mark.parametrize(
    "comment",
    [
        f"{WHOLE}  # jaxresid: ignore[JXR101]",
        f"{WHOLE}  # jaxresid: ignore[checkpointed-loss] measured on a v5p",
        f"{WHOLE}  # jaxresid: ignore[JXR1]",
        f"{WHOLE}  # jaxresid: ignore",
        f"{WHOLE}  # noqa: JXR101",
        f"{WHOLE}  # noqa",
        f"    # jaxresid: ignore[JXR101]\n{WHOLE}",
        f"{WHOLE}\n\n\n# jaxresid: file-ignore[JXR101]",
    ],
)
def test_comments_silence(lab, comment):
    name = lab.model(MODEL.replace(f"{WHOLE}  # ! JXR101", comment))
    assert lab.codes(f"{name}:whole") == []
    assert lab.codes(f"{name}:whole", "--ignore-noqa") == ["JXR101"]


def test_other_comments_do_not(lab):
    source = MODEL.replace("# ! JXR101", "# jaxresid: ignore[JXR102]  # noqa: F401")
    assert lab.codes(f"{lab.model(source)}:whole") == ["JXR101"]


def test_suppressions_are_judged_by_the_linter_alone(lab, capsys):
    # Nothing to silence here, and neither command may say so: lint cannot see JXR801, and a trace
    # of one function is no reason to call the other comment unused.
    rest = (
        "\n\ndef other(g, x):\n    jax.checkpoint(g)  # jaxresid: ignore[JXR105]\n    return g(x)\n"
    )
    source = MODEL.replace("# ! JXR401", "# jaxresid: ignore[JXR801, useless-checkpoint, JXR8]")
    name = lab.model(source.replace("prevent_cse=False", "prevent_cse=True") + rest)
    assert lab.codes(f"{name}:earns") == []
    assert run(["lint", "--isolated", "--select", "JXR0,JXR105", name]) == 0
    capsys.readouterr()
    (lab.path / "pyproject.toml").touch()  # a whole project: every rule of lint can speak
    blanket = lab.model("import jax  # jaxresid: ignore\n\nf = jax.checkpoint\n")
    assert run(["lint", "--isolated", blanket]) == 1
    assert "this suppression silences nothing here" in capsys.readouterr().out
    unknown = lab.model("import jax  # jaxresid: ignore[JXR899]\n\nf = jax.checkpoint\n")
    assert run(["lint", "--isolated", unknown]) == 1
    assert "`JXR899` is not a rule of jaxresid" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "codes"),
    [
        ([], ["JXR302", "JXR301"]),
        (["--select", "JXR301"], ["JXR301"]),
        (["--select", "JXR3"], ["JXR302", "JXR301"]),
        (["--select", "JXR8"], []),
        (["--select", "JXR8", "--extend-select", "unused-checkpoint-name"], ["JXR302"]),
        (["--ignore", "JXR302,JXR1"], ["JXR301"]),
        (["--per-file-ignores", "*.py:JXR302"], ["JXR301"]),
        (["--per-file-ignores", "other/*.py:JXR302"], ["JXR302", "JXR301"]),
    ],
)
def test_rules_are_chosen(lab, argv, codes):
    source = MODEL.replace("checkpoint(layer, policy=cp.save", "checkpoint(named, policy=cp.save")
    found = lab.codes(f"{lab.model(source)}:misnamed", *argv)
    assert [c for c in found if c != "JXR302"] == [c for c in codes if c != "JXR302"]
    assert ("JXR302" in found) == ("JXR302" in codes)


@pytest.mark.integration
def test_the_configuration_nearest_to_the_file_holds_for_it(lab):
    name = lab.model()
    (lab.path / "pyproject.toml").write_text('[tool.jaxresid]\nignore = ["checkpointed-loss"]\n')
    assert lab.codes(f"{name}:whole") == []
    assert lab.codes(f"{name}:whole", "--isolated") == ["JXR101"]
    other = lab.path / "other.toml"
    other.write_text('[tool.jaxresid]\nselect = ["JXR8"]\noutput-format = "concise"\n')
    assert lab(f"{name}:last_stage", "--config", str(other))[:2] == (0, "All checks passed!\n")
    assert lab.codes(f"{name}:last_stage") == ["JXR102"]
    (lab.path / "pyproject.toml").write_text('[tool.jaxresid]\nselect = ["JXR9"]\n')
    code, out, err = lab(f"{name}:whole")
    assert (code, out) == (2, "")
    assert err.startswith("jaxresid: error: pyproject.toml:2: unknown rule `JXR9`")


@pytest.mark.integration
def test_exit_codes(lab):
    name = lab.model()
    assert lab(f"{name}:earns")[0] == 0
    assert lab(f"{name}:unwrapped")[0] == 0  # an info
    assert lab(f"{name}:whole")[0] == 1
    assert lab(f"{name}:whole", "--exit-zero")[0] == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["{}:whole", "--select", "JXR99"], "unknown rule `JXR99` in `--select`"),
        (["{}:whole", "--select", "useles-checkpoint"], "did you mean `useless-checkpoint`?"),
        (["{}:whole", "--select", ","], "--select selects no rules"),
        (["{}:whol"], "did you mean whole?"),
        (["{}"], "names no function; there are"),
        (["nowhere.py:whole"], "no such file"),
        (["{}:whole", "--arg", "f32["], "--arg"),
        (["{}:whole", "--isolated", "--config", "x.toml"], "--isolated ignores all configuration"),
        (["{}:whole", "--statistics", "-f", "sarif"], "--statistics needs one of the formats text"),
        (["{}:whole", "-o", "missing/out.txt"], "cannot write missing/out.txt"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(lab, argv, words):
    name = lab.model()
    code, out, err = lab(*(a.format(name) for a in argv))
    assert (code, out) == (2, "")
    assert err.startswith("jaxresid: error: ") and words in err.split("\n")[0]


def test_nothing_is_traced_before_the_codes_are_known(lab):
    name = lab.model("raise SystemExit('imported')\n")
    assert "unknown rule" in lab(f"{name}:loss", "--ignore", "JXR99")[2]


@pytest.mark.integration
def test_statistics_quiet_and_output(lab):
    name = lab.model()
    assert lab(f"{name}:whole", "--statistics")[:2] == (1, "1  JXR101  [ ] checkpointed-loss\n")
    assert lab(f"{name}:earns", "-q") == (0, "", "")
    code, out, _ = lab(f"{name}:whole", "-q", "-f", "concise", "-o", "out.txt")
    assert (code, out) == (1, "")
    assert len((lab.path / "out.txt").read_text().splitlines()) == 1
    assert "\x1b[" in lab(f"{name}:whole", "--color", "always")[1]
    assert "\x1b[" not in lab(f"{name}:whole")[1]


def test_the_profile_and_the_mode_are_those_of_report(lab):
    name = lab.model()
    (item,) = lab.found(f"{name}:whole", "--on", "tpu:v5p")
    assert (item["measured"]["on"], item["measured"]["profile"]) == ("tpu:v5p", "tpu")
    assert lab.codes(f"{name}:train_step", "--mode", "program") == ["JXR109"]
    code, _, err = lab(f"{name}:train_step", "--mode", "moon")
    assert code == 2 and "--mode" in err


def test_warnings_go_to_stderr(lab):
    source = (
        "import jax\nimport jax.numpy as jnp\n\n\ndef loss(x, rate):\n"
        "    return jnp.sin(x).sum() if rate > 0 else x.sum()\n\n\n"
        "def loss_inputs():\n    return jax.ShapeDtypeStruct((3,), jnp.float32), 0.5\n"
    )
    target = f"{lab.model(source)}:loss"
    code, out, err = lab(target)
    assert (code, out) == (0, "All checks passed!\n")
    warning = "jaxresid: warning: kept static, as the function needs the value: rate\n"
    assert err == warning + PLACE
    assert lab(target, "-f", "concise", "--on", "tpu:v5p")[2] == warning
    assert lab(target, "-q")[2] == ""


# -- formats


@pytest.mark.integration
@pytest.mark.parametrize("format", FORMATS)
def test_every_format(lab, format):
    name = lab.model()
    code, out, err = lab(f"{name}:whole", "-f", format)
    assert (code, err) == (1, PLACE if format == "text" else "")
    assert "saves nothing" in out
    if format in ("json", "sarif", "gitlab", "rdjson", "lsp"):
        json.loads(out)
    elif format == "junit":
        assert ET.fromstring(out).get("failures") == "1"
    elif format == "json-lines":
        assert [json.loads(line)["code"] for line in out.splitlines()] == ["JXR101"]


@pytest.mark.integration
def test_the_figures_are_in_the_formats_that_can_hold_them(lab):
    target = f"{lab.model()}:whole"
    (item,) = lab.found(target)
    schema = json.loads((ROOT / "jaxresid/schema/lint.schema.json").read_text())
    jsonschema.validate([item], schema)
    measured = item["measured"]
    assert measured["verdict"] == "saves-nothing"
    assert measured["kept_nbytes"] < measured["kept_without_nbytes"]
    assert measured["recompute_flops"] >= 8 * 2 * 4096 * 256 * 256
    log = json.loads(lab(target, "-f", "sarif")[1])
    (result,) = log["runs"][0]["results"]
    assert result["properties"]["measured"] == measured
    (described,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert described["id"] == "JXR101" and described["fullDescription"]
    (file,) = json.loads(lab(target, "-f", "lsp")[1])
    assert file["diagnostics"][0]["data"]["measured"] == measured
    (line,) = lab(target, "-f", "json-lines")[1].splitlines()
    assert json.loads(line)["measured"] == measured


def test_sarif_describes_what_only_a_trace_can_tell(lab):
    (rule,) = [r for r in traced_rules() if r.code == "JXR802"]
    log = json.loads(lab(f"{lab.model(rule.bad[0].source)}:loss", "-f", "sarif")[1])
    (described,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert described["id"] == "JXR802"
    assert described["help"]["text"].startswith("What it does\nTakes each checkpoint out")


def test_text_shows_figures_with_their_units(lab):
    name = lab.model()
    text = lab(f"{name}:whole")[1]
    row = marked(MODEL, "JXR101")[0]
    assert f"--> {name}:{row}:12" in text
    assert "^" * len("jax.checkpoint(net)(ws, x)") in text
    assert re.search(r"The program keeps \d+\.\d\d MiB without it", " ".join(text.split()))
    assert re.search(r"; \d+\.\d\d GFLOP are recomputed", " ".join(text.split()))
    assert "figures: estimated for gpu:h100, jax " in text


def test_explain_and_rules_know_the_codes(capsys):
    for rule in traced_rules():
        for word in (rule.code, rule.name):
            assert run(["explain", word]) == 0
            out = capsys.readouterr().out
            assert "needs:    a trace, which check makes" in out
            assert f"# <-- {rule.code}" in out
    assert run(["rules", "-f", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [r["code"] for r in listed if r.get("traced")] == [e.code for e in TRACED]
    assert run(["explain", "useles-checkpoint"]) == 2
    assert "useless-checkpoint" in capsys.readouterr().err


def test_lint_takes_the_codes_and_finds_none(lab, capsys):
    name = lab.model(traced_rules()[0].bad[0].source)
    assert run(["lint", "--isolated", "--select", "JXR8", name]) == 0
    assert capsys.readouterr().out == "All checks passed!\n"


# -- Python


def test_python():
    (found,) = jaxresid.check(block.checkpointed)(*block.example_inputs())
    assert isinstance(found, jaxresid.Violation)
    assert (found.code, found.path) == ("JXR101", "fixtures/inspect/block.py")
    assert jaxresid.check(block.plain)(*block.example_inputs()) == ()
    (tpu,) = jaxresid.check(block.checkpointed, on="tpu:v5p")(*block.example_inputs())
    assert tpu.measured["on"] == "tpu:v5p"


def test_python_passes_arguments_on():
    def fun(w, x, *, scale):
        return jax.checkpoint(lambda w, x: jnp.sin(jnp.sin(x @ w)))(w, x).sum() * scale, {"x": x}

    (found,) = jaxresid.check(fun, argnums=1, has_aux=True)(f32(256, 256), X, scale=f32())
    assert found.code in ("JXR101", "JXR102")
    with pytest.raises(jaxresid.JaxresidError, match="scale"):
        jaxresid.check(fun)(f32(256, 256), X)


def test_a_function_without_a_file():
    """As in a notebook: linecache knows the lines, or nobody does."""
    import linecache

    source = (
        "import jax, jax.numpy as jnp\ndef loss(w, x):\n"
        "    return jax.checkpoint(lambda w, x: jnp.sum(jnp.sin(jnp.sin(x @ w))))(w, x)\n"
    )
    for file, known in (("<cell 1>", True), ("<cell 2>", False)):
        if known:
            linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        namespace = {}
        exec(compile(source, file, "exec"), namespace)
        (found,) = jaxresid.check(namespace["loss"])(f32(256, 256), X)
        assert (found.code, found.span.row) == ("JXR101", 3)
        assert (found.span.column == 11) == known


def test_results_come_by_file_sorted():
    found = inspection(Question(block.checkpointed, block.example_inputs()))
    (linted,) = checked(found, LintRun(load(ROOT, Options()), nearest=Options()))
    assert linted.lines[None][linted.violations[0].span.row - 1].strip().startswith("return")


@pytest.mark.integration
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(programs.programs, st.booleans())
def test_no_program_is_too_odd(program, is_step):
    fun = programs.function(program)
    assume(programs.is_differentiable(fun))
    target = jax.grad(fun) if is_step else fun
    for violation in jaxresid.check(target)(*programs.arguments()):
        assert violation.code in KNOWN
        assert violation.path.endswith(".py")
        assert violation.span.row in violation.noqa_rows


# -- policies that are none

BAD = """
import jax
import jax.numpy as jnp

def raising(*args, **params):
    raise ValueError("no")

def loss(x, policy):
    return jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x @ x))), policy=policy)(x)

def raises(x): return loss(x, raising)
def none(x): return loss(x, lambda *_, **__: None)
def uncalled(x): return loss(x, jax.checkpoint_policies.save_only_these_names)
"""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", "the policy raising of the checkpoint at"),
        ("none", "returns None; it must return True or False"),
        ("uncalled", "save_only_these_names makes a policy, so call it"),
    ],
)
def test_a_policy_that_is_none(lab, function, words):
    name = lab.model(BAD)
    code, out, err = lab(f"{name}:{function}", "--arg", "f32[8,8]")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and words in err and f"{name}:" in err
