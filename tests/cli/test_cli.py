"""The command line as a user meets it: inputs, formats, errors, exit codes."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from typing import get_args

import jax
import pytest

from jaxresid.base.option_types import ReportView
from jaxresid.cli.main import write
from tests.stages import without_stages
from tests.where import ROOT

MODEL = """
import jax, jax.numpy as jnp
import jaxresid

def loss(params, x):
    h = jnp.sin(x @ params["w"])
    return (h + params["b"]).sum()

def loss_inputs():
    return {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}, jnp.ones((2, 4))

def by_name():
    return {"x": jnp.ones((2, 4)), "params": {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}}

def as_inputs():
    return jaxresid.Inputs(loss_inputs()[:1], {"x": jnp.ones((2, 4))})

def repeat(x, n, mode="a", *, scale=1.0):
    for _ in range(n):
        x = jnp.sin(x) if mode == "a" else jnp.cos(x)
    return (x * scale).sum()


def layered(x, layer=repeat, more=(object(),)):
    return layer(x, 2)

def kept_inputs():
    return jnp.ones(3), 2, "b"

def plain(x): return jnp.sin(x).sum()

def huge_inputs():
    return (jax.random.normal(jax.random.key(0), (1 << 20, 1 << 22)),)

def untraceable_inputs():
    x = jnp.ones(3)
    return (x,) if x.sum() > 0 else (x, x)

def number_inputs(): return 3
def needy_inputs(size): return (jnp.ones(size),)

def scalar(x): return jnp.sin(jnp.sin(x))
def with_aux(x): return jnp.sin(x).sum(), {"mean": x.mean(), "name": "sine"}
def with_key(x, key): return (jnp.sin(x) * jax.random.normal(key, x.shape)).sum()
def half(x): return jnp.sin(jnp.sin(x))
def checkpointed(x): return jnp.sin(jax.checkpoint(half)(x)).sum()
def train_step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.sin(jnp.sin(w * x)).sum())(w)
def switched(x, rate):
    return jnp.sin(x).sum() if rate > 0 else x.sum()

def make():
    w = {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}
    return (lambda x: loss(w, x)), (jax.ShapeDtypeStruct((2, 4), "float32"),)
def make_with_kwargs(): return loss, (loss_inputs()[0],), {"x": jnp.ones((2, 4))}
def make_wrong(): return loss

def mismatched(x): return (jnp.ones((3, 4)) @ x).sum()
def integers(x): return x * 2
def to_integers(x): return jnp.sin(x).astype("int32")
def nothing(x): return None
def endless(x):
    return jax.lax.while_loop(lambda c: c.sum() < 3, lambda c: c * 2, jnp.sin(x)).sum()
def wants_array(n, x): return (n.astype("float32") * x).sum()
def chatty(x):
    print("hello from the model")
    return jnp.sin(x).sum()
def slow(x):
    import time
    time.sleep(30)
    return x.sum()
def interrupted(x):
    import gc, os, signal, time
    def callback(phase, info):
        gc.callbacks.remove(callback)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    gc.callbacks.append(callback)
    gc.collect()
    time.sleep(10)
    return x.sum()
print("imported")
"""


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "zebu.py").write_text(MODEL)
    yield tmp_path
    sys.modules.pop("zebu", None)


@pytest.fixture
def fails(call):
    """Runs; expects exit 2, nothing on stdout, one message without a traceback."""

    def fails(*argv):
        code, out, err = call("report", *argv)
        assert (code, out) == (2, ""), err
        assert "Traceback" not in err
        err = without_stages(err.replace("imported\n", ""))
        assert err.startswith(("jaxresid: error: ", "Usage: "))
        return err

    return fails


def differentiated(report):
    return report["target"]["differentiated"]


def shapes(report, kind="computed"):
    return sorted(tuple(r["shape"]) for r in report["residuals"] if r["origin"]["kind"] == kind)


def primitives(report):
    origins = [r["origin"] for r in report["residuals"]]
    return [o["primitive"] for o in origins if o["kind"] == "computed"]


LOSS = [(2, 4)]
PARAMS = ["params['b']", "params['w']", "x"]


class TestInputs:
    def test_function_of_the_targets_name(self, report):
        found = report("zebu:loss")
        assert shapes(found) == LOSS
        assert differentiated(found) == PARAMS

    @pytest.mark.parametrize("ref", ["by_name", "as_inputs", "zebu:by_name", "zebu.py:as_inputs"])
    def test_named_function(self, report, ref):
        found = report("zebu:loss", "--inputs", ref)
        assert shapes(found) == LOSS
        assert sorted(differentiated(found)) == PARAMS

    def test_specs(self, report):
        found = report(
            "zebu:loss", "--arg", '{"w": f32[4,4], "b": f32[4]}', "--kwarg", "x=f32[2,4]"
        )
        assert shapes(found) == LOSS
        assert sorted(differentiated(found)) == PARAMS

    def test_literals_are_static(self, report):
        found = report(
            "zebu:repeat",
            *("--arg", "f32[3]", "--arg", "5", "--arg", "'b'"),
            "--kwarg",
            "scale=0.5",
        )
        assert shapes(found) == [(3,)] * 5
        assert differentiated(found) == ["x"]
        assert primitives(found) == ["sin"] * 5

    def test_a_traced_scalar(self, report):
        found = report("zebu:repeat", "--arg", "f32[3]", "--arg", "1", "--kwarg", "scale=f32[]")
        assert differentiated(found) == ["x", "scale"]

    def test_values_are_carried_around_the_trace(self, report):
        found = report("zebu:repeat", "--inputs", "kept_inputs")
        assert primitives(found) == ["sin"] * 2

    def test_nothing_is_allocated(self, report):
        found = report("zebu:plain", "--inputs", "huge_inputs")  # 16 TiB
        assert found["totals"]["computed_nbytes"] == 4 << 42

    def test_keys(self, report):
        found = report("zebu:with_key", "--arg", "f32[3]", "--arg", "key[]")
        assert differentiated(found) == ["x"]

    def test_build(self, report):
        assert differentiated(report("zebu:make", "--build")) == ["x"]
        assert sorted(differentiated(report("zebu:make_with_kwargs", "--build"))) == PARAMS

    def test_concrete_inputs(self, report):
        found = report("zebu:plain", "--inputs", "untraceable_inputs", "--concrete-inputs")
        assert shapes(found) == [(3,)]

    def test_argnums(self, report):
        assert differentiated(report("zebu:loss", "--argnums", "1")) == ["x"]
        assert differentiated(report("zebu:loss", "--argnums", "0,-1")) == PARAMS

    def test_aux(self, report):
        found = report("zebu:with_aux", "--arg", "f32[3]", "--has-aux")
        assert shapes(found) == [(3,)]

    def test_a_float_that_the_function_looks_at(self, project, report):
        (project / "gaur.py").write_text(
            "from zebu import switched\nimport jax.numpy as jnp\n"
            "def switched_inputs(): return jnp.ones(3), 0.5\n"
        )
        found = report("gaur:switched")
        assert differentiated(found) == ["x"]
        assert found["warnings"] == ["kept static, as the function needs the value: rate"]

    def test_double_precision_is_said_to_be_single(self, report):
        found = report("zebu:plain", "--arg", "f64[3]")
        assert found["residuals"][0]["dtype"] == "float32"
        assert "float64 inputs become float32" in found["warnings"][0]


SPEC3 = ("--arg", "f32[3]")
AS_LOSS = ("--mode", "loss")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["zebu"], r"zebu names no function; .*\n  loss +\(params, x\)"),
        (["nosuch"], "write module:function"),
        (["nosuch:f"], "no module named 'nosuch'"),
        (["zebu:plane"], "has no attribute 'plane'; did you mean plain"),
        (["zebu:repeat"], r"no inputs for repeat\(x, n, mode='a', \*, scale=1.0\)\n.*--arg"),
        (["zebu:layered"], r"no inputs for layered\(x, layer=repeat, more=\.\.\.\)\n.*--arg"),
        (["zebu:plain", "--arg", "f32[3"], r"expected '\]'.*\n  f32\[3\n       \^"),
        (["zebu:plain", "--arg", "f32[-3]"], "at least 0, not -3"),
        (["zebu:plain", "--arg", "f32[inf]"], "at least 0, not inf"),
        (["zebu:plain", "--kwarg", "f32[3]"], "is not NAME=SPEC"),
        (["zebu:plain", "--kwarg", "x=f32[3"], r"--kwarg x: expected '\]'"),
        (["zebu:plain", *SPEC3, *SPEC3], r"too many positional arguments.*\n  plain\(x\)"),
        (["zebu:plain", "--kwarg", "y=f32[3]"], "missing a required argument: 'x'"),
        (
            ["zebu:mismatched", *SPEC3],
            r"TypeError: .*\n  at zebu.py:\d+ in mismatched: def mismatched",
        ),
        (
            ["zebu:integers", "--arg", "i32[3]", "--mode", "loss"],
            r"no argument is a float .*: x \(int32\)",
        ),
        (
            ["zebu:plain", "--arg", "3", *AS_LOSS],
            r"no argument is a float .*: x \(static 3\)",
        ),
        (
            ["zebu:to_integers", *SPEC3, *AS_LOSS],
            "returns only int32, which has no gradient",
        ),
        (["zebu:nothing", *SPEC3, *AS_LOSS], "returns no arrays"),
        (["zebu:nothing", *SPEC3], "returns no array and changes nothing"),
        (
            ["zebu:endless", *SPEC3],
            r"Reverse-mode differentiation.*\n  at zebu.py:\d+ in endless: ",
        ),
        (
            ["zebu:repeat", *SPEC3, "--arg", "i32[]"],
            r"TracerIntegerConversionError.*\n  at zebu.py:\d+ in repeat: for _ in.*\n.*literal",
        ),
        (
            ["zebu:wants_array", "--arg", "3", *SPEC3],
            r"AttributeError.*\n  at zebu.py:\d+ .*\n  static here: n = 3; .* f32\[\]",
        ),
        (["zebu:plain", "--inputs", "nosuch"], "has no attribute 'nosuch'"),
        (
            ["zebu:plain", "--inputs", "number_inputs"],
            "must return a tuple .* not a value of type int",
        ),
        (["zebu:plain", "--inputs", "needy_inputs"], "needs size"),
        (
            ["zebu:plain", "--inputs", "untraceable_inputs"],
            "cannot be traced.*\n.*--concrete-inputs",
        ),
        (
            ["zebu:plain", *SPEC3, "--argnums", "1"],
            r"out of range: .* 1 positional argument \(0 x\)",
        ),
        (["zebu:plain", *SPEC3, "--argnums", "x"], "not a list of positions"),
        (["zebu:loss", "--argnums", "0", "--arg", "3", *SPEC3], "argnums selects params"),
        (["zebu:plain", *SPEC3, "--has-aux"], r"must return \(output, aux\), not an array"),
        (["zebu:make_wrong", "--build"], "must return"),
        (["zebu:needy_inputs", "--build"], "fails: TypeError"),
        (["zebu:plain", *SPEC3, "--inputs", "loss_inputs"], "cannot be combined: use one"),
        (["zebu:plain", *SPEC3, "--concrete-inputs"], "cannot be combined with --arg"),
        (["zebu:plain", *SPEC3, "--min-bytes", "1XB"], "'1XB' is not a size"),
        (["zebu:plain", *SPEC3, "-o", "no/such/folder"], "cannot write no/such/folder"),
        (["zebu:plain", *SPEC3, "--group-by", "colour"], "'colour' is not one of"),
        (["zebu:plain", *SPEC3, "--on", "tpu"], "'tpu' does not say which TPU"),
        (["zebu:plain", *SPEC3, "--mode", "train"], "'train' is not one of 'auto', 'loss'"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input(fails, argv, message):
    assert re.search(message, fails(*argv), re.DOTALL)


def test_messages_hide_jaxs_own_frames(fails):
    assert "jax/_src" not in fails("zebu:mismatched", "--arg", "f32[3]")


def test_traceback_on_request(call):
    code, _, err = call("report", "zebu:mismatched", "--arg", "f32[3]", "--traceback")
    assert code == 2
    assert "Traceback" in err
    assert "jaxresid: error: zebu:mismatched fails to trace" in err


class TestEstimates:
    @pytest.mark.parametrize(("on", "profile"), [("tpu:v5p", "tpu"), ("gpu:h100", "gpu")])
    def test_the_place(self, call, report, on, profile):
        found = report("zebu:loss", "--on", on)
        assert (found["on"]["name"], found["on"]["origin"]) == (on, "given with --on")
        assert found["on"]["profile"] == found["peak"]["profile"] == profile
        text = " ".join(call("report", "zebu:loss", "--on", on)[1].split())
        assert "peak about " in text
        assert f"on {on} " in text and "given with --on" in text

    def test_without_an_accelerator_it_is_an_h100(self, report):
        found = report("zebu:loss")
        assert found["on"]["name"] == "gpu:h100"
        assert found["on"]["origin"] == "the default, as JAX sees no accelerator here"

    def test_the_peak_holds_what_comes_in_and_goes_out(self, report):
        peak = report("zebu:loss")["peak"]
        arguments = 4 * (4 * 4 + 4 + 2 * 4)
        assert peak["arguments_nbytes"] == arguments
        assert peak["outputs_nbytes"] == arguments + 4  # a gradient each, and the loss
        assert peak["nbytes"] >= 2 * arguments + 4

    def test_text_has_every_block_in_order(self, call):
        _, out, _ = call("report", "zebu:checkpointed", *SPEC3, "-v")
        starts = ["zebu:checkpointed", "peak about", "next: ", " forward", "live at the peak"]
        starts += ["1 checkpoint ", "Residual bytes"]
        found = [out.index(start) for start in starts]
        assert found == sorted(found)

    def test_a_function_without_checkpoints_has_no_such_block(self, call):
        _, out, _ = call("report", "zebu:plain", *SPEC3, "-v")
        assert "1 checkpoint" not in out
        assert "recompute" not in out

    def test_a_checkpoint(self, report):
        (found,) = report("zebu:checkpointed", *SPEC3)["checkpoints"]
        assert (found["function"], found["policy"]) == ("half", None)
        assert found["kept_without_nbytes"] > found["kept_nbytes"]


class TestWhatIsShown:
    def test_the_next_step_is_asked_of_the_same_target(self, call, report):
        given = ("zebu:plain", *SPEC3, "--on", "tpu:v5e", "--margin", "1GiB", "--argnums", "0")
        out = call("report", *given)[1].replace(" \\\n", " ")
        said = out[out.index("jaxresid compare") :].splitlines()[0]
        words = shlex.split(said)
        assert words[:3] == ["jaxresid", "compare", "zebu:plain"]
        assert report(*given)["next_step"]["command"] == words
        # It is a command that runs, and asks about the same.
        again = json.loads(call(*words[1:], "-f", "json")[1])
        assert again["target"]["differentiated"] == report(*given)["target"]["differentiated"]
        assert again["on"]["memory_nbytes"] == report(*given)["on"]["memory_nbytes"]

    @pytest.mark.parametrize("view", get_args(ReportView))
    def test_one_thing_in_full(self, call, view):
        code, out, _ = call("report", "zebu:checkpointed", *SPEC3, "--view", view)
        assert code == 0
        assert out.startswith("zebu:checkpointed  on ")
        assert ("\nlive at the peak, at " in out) == (view == "peak")
        assert ("by module" in out) == (view == "modules")
        assert ("most at once" in out) == (view == "timeline")
        assert ("with → without each" in out) == (view == "checkpoints")
        assert ("\nresiduals\n" in out) == (view == "residuals")

    @pytest.mark.parametrize(
        "rows", [("--top", "2"), ("--group-by", "line"), ("--all",), ("--min-bytes", "0")]
    )
    def test_rows_are_chosen_where_they_are_shown(self, call, rows):
        code, _, err = call("report", "zebu:plain", *SPEC3, *rows)
        assert code == 2
        assert f"{rows[0]} chooses rows of residuals: add --view residuals, or -v" in err
        for shown in (("-v",), ("--view", "residuals")):
            assert call("report", "zebu:plain", *SPEC3, *rows, *shown)[0] == 0

    def test_everything_or_one_thing(self, call):
        code, _, err = call("report", "zebu:plain", *SPEC3, "-v", "--view", "peak")
        assert code == 2
        assert "choose one" in err

    def test_signs_that_ascii_has_none_of(self, call, monkeypatch):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", stream)
        write("a · b × 2 → c › d é", None)
        stream.seek(0)
        assert stream.read() == "a - b x 2 > c > d ?\n"


class TestModes:
    @pytest.mark.parametrize("options", [(), ("--mode", "auto"), ("--mode", "program")])
    def test_a_training_step(self, report, call, options):
        target = ("zebu:train_step", *SPEC3, *SPEC3, *options)
        assert report(*target)["target"]["mode"] == "program"
        assert call("report", *target)[1].splitlines()[0].endswith("training step")

    def test_a_step_as_a_function(self, report):
        found = report("zebu:train_step", *SPEC3, *SPEC3, "--mode", "loss")
        assert found["target"]["mode"] == "loss"

    def test_a_function(self, report, call):
        assert report("zebu:loss")["target"]["mode"] == "loss"
        assert "training step" not in call("report", "zebu:loss")[1]

    def test_jaxs_own_lines_are_of_functions_only(self, fails):
        message = fails("zebu:train_step", *SPEC3, *SPEC3, "-f", "jax")
        assert "is taken as it is, and JAX lists" in message
        assert "--mode loss" in message

    def test_split_looks_at_the_function_itself(self, call):
        code, out, err = call("split", "zebu:loss", "-f", "json")
        assert code == 0, err
        assert json.loads(out)["target"]["mode"] == "loss"
        assert call("split", "zebu:loss", "--mode", "program")[0] == 2


class TestOutput:
    def test_the_model_cannot_spoil_it(self, call):
        code, out, err = call("report", "zebu:chatty", "--arg", "f32[3]", "-f", "json")
        assert code == 0
        assert json.loads(out)["schema"] == 1
        assert "hello from the model" in err

    @pytest.mark.parametrize(
        ("output", "why"),
        [
            ("missing/out.txt", "No such file or directory"),
            ("zebu.py/out.txt", "Not a directory"),
            (".", "Is a directory"),
        ],
    )
    @pytest.mark.parametrize("command", [["report"], ["compile", "--on", "cpu"]])
    def test_an_output_that_cannot_be_written_is_told_before_anything_is_done(
        self, command, output, why, call
    ):
        code, out, err = call(*command, "zebu:plain", "--arg", "f32[3]", "-o", output)
        assert (code, out) == (2, "")
        assert err == f"jaxresid: error: cannot write {output}: {why}\n"
        assert "zebu" not in sys.modules

    def test_file(self, call, project):
        code, out, _ = call("report", "zebu:plain", "--arg", "f32[3]", "-o", "out.txt")
        assert (code, out) == (0, "")
        assert "kept for the backward pass" in (project / "out.txt").read_text()
        assert [p.name for p in project.iterdir() if p.name.startswith(".")] == []

    def test_a_failure_leaves_the_file_alone(self, call, project):
        (project / "out.json").write_text("before")
        code, _, _ = call("report", "zebu:mismatched", "--arg", "f32[3]", "-o", "out.json")
        assert code == 2
        assert (project / "out.json").read_text() == "before"

    def test_jaxs_own_lines(self, call):
        code, out, _ = call(
            *("report", "zebu:repeat", "--arg", "f32[3]", "--arg", "2", "--arg", "'b'", "-f", "jax")
        )
        assert code == 0
        lines = out.splitlines()
        assert len([line for line in lines if line.startswith("f32[3] output of sin")]) == 2
        assert lines[-4:] == [
            "# computed 24 B (24 B)",
            "# arguments 0 B (0 B)",
            "# host 0 B (0 B)",
            "# constants 0 B (0 B)",
        ]

    @pytest.mark.parametrize("options", [(), ("--argnums", "0")])
    def test_jaxs_own_lines_are_those_that_jax_prints(self, call, capsys, options):
        from jax.ad_checkpoint import print_saved_residuals

        code, out, _ = call("report", "zebu:loss", "-f", "jax", *options)
        assert code == 0
        ours = [line for line in out.splitlines() if not line.startswith("#")]
        import zebu

        params, x = zebu.loss_inputs()
        if options:
            print_saved_residuals(lambda params: zebu.loss(params, x), params)
        else:
            print_saved_residuals(zebu.loss, params, x)
        theirs = capsys.readouterr().out.splitlines()
        assert [line.partition(" ")[0] for line in ours] == [
            line.partition(" ")[0] for line in theirs
        ]
        if not options:
            assert ours == theirs


def subprocess_run(*argv, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    environment.update(options.pop("env", {}))
    return subprocess.run(
        [sys.executable, "-m", "jaxresid", *argv],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        **options,
    )


@pytest.fixture
def interruptible():
    """Starts the command line so that SIGINT interrupts it: a shell's background jobs, and so the
    tests in one, start with SIGINT ignored."""
    handled = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "runpy.run_module('jaxresid', run_name='__main__', alter_sys=True)"
    )
    return lambda *argv: subprocess.Popen(
        [sys.executable, "-c", handled, *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class TestProcess:
    @pytest.mark.integration
    def test_piped_text_has_no_colours(self):
        done = subprocess_run("report", "zebu:loss")
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert without_stages(done.stderr) == "imported\n"

    @pytest.mark.integration
    @pytest.mark.parametrize(("command", "pauses"), [("report", True), ("check", False)])
    def test_what_stays_until_the_end_is_not_looked_through_for_garbage(self, command, pauses):
        seen = (
            "import atexit, gc, runpy;"
            "atexit.register(lambda: print('seen', gc.isenabled(), gc.get_freeze_count() > 0));"
            "runpy.run_module('jaxresid', run_name='__main__', alter_sys=True)"
        )
        done = subprocess.run(
            [sys.executable, "-c", seen, command, "zebu:loss"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert f"seen {not pauses} True" in done.stdout

    @pytest.mark.integration
    def test_forced_colour_and_no_color(self):
        forced = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
        assert "\x1b[" in subprocess_run("report", "zebu:loss", env=forced).stdout
        plain = subprocess_run("report", "zebu:loss", env={**forced, "NO_COLOR": "1"}).stdout
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]", plain)

    @pytest.mark.integration
    def test_ascii_terminal(self):
        ascii_ = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
        done = subprocess_run("report", "zebu:loss", env=ascii_)
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii() and "###" in done.stdout
        blocks = subprocess_run("report", "zebu:loss", env={"PYTHONIOENCODING": "utf-8"})
        assert "███" in blocks.stdout

    @pytest.mark.integration
    def test_a_file_is_utf8_even_from_an_ascii_terminal(self, project):
        ascii_ = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
        done = subprocess_run("report", "zebu:loss", "-o", "out.txt", env=ascii_)
        assert done.returncode == 0, done.stderr
        assert "███" in (project / "out.txt").read_text("utf-8")

    @pytest.mark.integration
    def test_closed_pipe(self):
        target = "zebu:repeat --arg 'f32[3]' --arg 300"  # more than a pipe holds
        command = f"{sys.executable} -m jaxresid report {target} -f json"
        script = f"{command} | head -c 1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.stdout == "{"
        assert without_stages(done.stderr) == "imported\n"
        assert done.returncode == 0

    @pytest.mark.integration
    @pytest.mark.parametrize("form", ["json", "pprof"])
    def test_a_pipe_that_is_closed_before_anything_is_written(self, project, form):
        command = f"{sys.executable} -m jaxresid report zebu:plain --arg 'f32[3]' -q -f {form}"
        done = subprocess.run(
            ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "imported\n")

    @pytest.mark.integration
    def test_a_profile_is_not_written_to_a_terminal(self, project):
        import pty

        main, terminal = pty.openpty()
        done = subprocess.run(
            [sys.executable, *"-m jaxresid report zebu:plain --arg f32[3] -f pprof".split()],
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        os.close(terminal)
        os.close(main)
        assert done.returncode == 2
        assert "-f pprof is no text for a terminal: write it to a file with -o" in done.stderr

    @pytest.mark.integration
    def test_interrupt(self, interruptible):
        process = interruptible("report", "zebu:slow", "--arg", "f32[3]")
        assert process.stderr.readline() == "jaxresid: tracing zebu:slow\n"
        assert process.stderr.readline() == "imported\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err.strip()) == (130, "", "")

    @pytest.mark.integration
    def test_an_interrupt_that_python_drops(self, interruptible):
        """As in a callback of the garbage collector, of which JAX has one."""
        process = interruptible("report", "zebu:interrupted", "--arg", "f32[3]")
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, without_stages(err).strip()) == (130, "", "imported")

    @pytest.mark.integration
    def test_without_jax(self, project):
        hidden = project / "hidden"
        hidden.mkdir()
        (hidden / "jax.py").write_text(
            "raise ModuleNotFoundError(\"No module named 'jax'\", name='jax')"
        )
        environment = {"PYTHONPATH": f"{hidden}{os.pathsep}{ROOT}"}
        done = subprocess_run("report", "zebu:loss", env=environment)
        assert done.returncode == 2
        assert without_stages(done.stderr).count("\n") == 1
        assert (
            "jax is not installed here; install it with: pip install 'jaxresid[jax]'" in done.stderr
        )

    @pytest.mark.integration
    def test_with_a_jax_that_is_too_old(self, project):
        hidden = project / "hidden"
        hidden.mkdir()
        (hidden / "jax.py").write_text("__version__ = '0.6.2'")
        environment = {"PYTHONPATH": f"{hidden}{os.pathsep}{ROOT}"}
        done = subprocess_run("report", "zebu:loss", env=environment)
        assert done.returncode == 2
        assert "jax 0.6.2 is too old; jaxresid needs jax >= 0.7" in done.stderr

    @pytest.mark.integration
    def test_progress_on_a_terminal_only(self, project):
        """Under a pseudo-terminal stderr shows the elapsed time after a second."""
        import pty

        (project / "eland.py").write_text("import time; time.sleep(2.5)\nfrom zebu import plain\n")
        main, terminal = pty.openpty()
        done = subprocess.run(
            [sys.executable, "-m", "jaxresid", "report", "eland:plain", "--arg", "f32[3]"],
            stdout=subprocess.PIPE,
            stderr=terminal,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
            check=False,
        )
        os.close(terminal)
        shown = b""
        while True:
            try:
                piece = os.read(main, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        os.close(main)
        assert done.returncode == 0
        assert b"tracing eland:plain" in shown
        assert b"tracing" not in done.stdout


def test_a_gpu_is_left_to_others(monkeypatch, report):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    report("zebu:plain", "--arg", "f32[3]")
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_version(call):
    from jaxresid import __version__

    assert call("--version")[:2] == (0, f"jaxresid, version {__version__}\n")


def test_report_says_which_jax(report):
    found = report("zebu:plain", "--arg", "f32[3]")
    assert found["jax"]["version"] == jax.__version__
    assert found["jax"]["flags"]["jax_enable_x64"] is jax.config.jax_enable_x64
