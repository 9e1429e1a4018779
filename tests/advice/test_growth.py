"""Growth over a lockfile, a saved report or a revision: what fails, at which line, and the file."""

import dataclasses
import json
import linecache
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxresid
from jaxresid.advice.check.growth import Earlier, baseline_of, growth_finding
from jaxresid.advice.check.lockfile import baselines_in, lockfile_text, rounded_up
from jaxresid.base.errors import InputsError
from jaxresid.base.text.units import parse_bytes, parse_growth
from jaxresid.cli.main import run
from jaxresid.results import Baseline, BaselineLine, Compiled
from tests.stages import without_stages
from tests.where import ROOT

MIB = 2**20
MODEL = """
import jax, jax.numpy as jnp


def layer(w, x):
    return jnp.tanh(x @ w)


def loss(ws, x):
    for i in range(8):
        x = layer(ws[i], x)
    return jnp.sum(x ** 2)


def loss_inputs(batch=4096):
    return jax.ShapeDtypeStruct((8, 256, 256), jnp.float32), jax.ShapeDtypeStruct(
        (batch, 256), jnp.float32)
"""
GROWN = MODEL.replace(
    "    return jnp.tanh(x @ w)", "    y = jnp.exp(x)\n    return jnp.tanh(x @ w) * y"
)
TRAIN = (
    '[tool.jaxresid]\non = "gpu:h100"\n[tool.jaxresid.targets.train]\ntarget = "model.py:loss"\n'
)


@pytest.fixture
def lab(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    number = iter(range(100))

    class Lab:
        path = tmp_path

        def write(self, model=MODEL, toml="", name=None):
            # A module is imported once, so that each version is a file of its own.
            file = name or f"model{next(number)}.py"
            (tmp_path / file).write_text(model)
            (tmp_path / "pyproject.toml").write_text(TRAIN.replace("model.py", file) + toml + "\n")
            return file

        def __call__(self, *argv):
            capsys.readouterr()
            code = run(["check", *argv])
            out, err = capsys.readouterr()
            assert "Traceback" not in err
            return code, out, without_stages(err)

        def found(self, *argv):
            code, out, err = self(*argv, "-f", "json")
            found = [v for v in json.loads(out) if v["code"] == "JXR823"]
            assert code == any(v["severity"] == "error" for v in found), err
            return found

    return Lab()


def inspected(source, path, name="model.py", on="gpu:h100"):
    file = path / name
    file.write_text(source)
    linecache.clearcache()
    namespace = {"__name__": name}
    exec(compile(source, str(file), "exec"), namespace)
    return jaxresid.inspect(namespace["loss"], on=on)(*namespace["loss_inputs"]())


# -- the figures


def locked(report, root):
    text = lockfile_text({"train": baseline_of(report, root)})
    return Earlier("jaxresid.lock", baselines_in(text, "f")["train"])


def row_of(source, code):
    return next(i for i, line in enumerate(source.split("\n"), 1) if code in line)


@pytest.mark.parametrize("kind", ["lock", "report"])
def test_a_planted_residual_is_found_at_its_line(tmp_path, kind):
    before = inspected(MODEL, tmp_path)
    earlier = (
        locked(before, tmp_path)
        if kind == "lock"
        else Earlier("main", baseline_of(before, tmp_path), before)
    )
    assert growth_finding(before, earlier, 0.0, "train", tmp_path) is None
    after = inspected(GROWN, tmp_path)
    grown = growth_finding(after, earlier, 0.02, "train", tmp_path)
    found = grown.finding
    assert grown.fails
    assert found.name == "grown-over-baseline"
    assert found.message.startswith(
        f"`train` has grown by more than 2% since {earlier.label}: the estimated peak is "
    )
    rows = [row_of(GROWN, "jnp.exp(x)"), row_of(GROWN, "jnp.tanh(x @ w)")]
    assert found.location.line in rows
    assert f"model.py:{next(r for r in rows if r != found.location.line)}" in found.message
    assert found.measured["kept_before_nbytes"] >= before.totals.computed_nbytes
    assert found.measured["kept_nbytes"] == after.totals.computed_nbytes
    assert found.measured["peak_nbytes"] == after.peak.nbytes
    # What the lines have grown by is what the whole has.
    grown = after.totals.computed_nbytes - before.totals.computed_nbytes
    share = grown / before.totals.computed_nbytes
    assert f"{100 * share:.1f}% more than" in found.message
    base = earlier.baseline
    top = after.peak.nbytes / base.peak_nbytes
    assert growth_finding(after, earlier, 0.99 * (top - 1), "train", tmp_path).fails
    higher = growth_finding(after, earlier, 1.01 * (top - 1), "train", tmp_path)
    assert higher is None or not higher.fails


KEEPS_MORE = """
import jax, jax.numpy as jnp


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def loss_inputs():
    return jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((128, 64), jnp.float32)
"""


@pytest.mark.parametrize("kind", ["lock", "report"])
def test_keeping_more_is_an_information_where_the_peak_is_no_higher(tmp_path, kind):
    before = inspected(KEEPS_MORE, tmp_path)
    line = "    x = x + jnp.cos(x)\n    return jnp.sum"
    after = inspected(KEEPS_MORE.replace("    return jnp.sum", line), tmp_path)
    assert after.totals.computed_nbytes > 1.5 * before.totals.computed_nbytes
    assert after.peak.nbytes <= before.peak.nbytes
    report = None if kind == "lock" else before
    earlier = Earlier("main", baseline_of(before, tmp_path), report)
    grown = growth_finding(after, earlier, 0.02, "train", tmp_path)
    assert not grown.fails
    assert grown.finding.message.startswith(
        "the peak has not grown by more than 2% since main, but of `train` the backward pass keeps"
    )


@pytest.mark.parametrize("kind", ["lock", "report"])
def test_code_further_down_is_no_growth(tmp_path, kind):
    before = inspected(MODEL, tmp_path)
    report = None if kind == "lock" else before
    earlier = Earlier("main", baseline_of(before, tmp_path), report)
    moved = inspected("# one\n# two\n" + MODEL, tmp_path)
    assert growth_finding(moved, earlier, 0.0, "train", tmp_path) is None


def test_less_is_no_growth(tmp_path):
    earlier = locked(inspected(GROWN, tmp_path), tmp_path)
    assert growth_finding(inspected(MODEL, tmp_path), earlier, 0.0, "train", tmp_path) is None


def test_an_edited_line_has_grown_by_the_difference(tmp_path):
    before = inspected(MODEL, tmp_path)
    code = "jnp.tanh(x @ w)"
    edited = MODEL.replace(code, f"jnp.sin({code})")
    after = inspected(edited, tmp_path)
    found = growth_finding(after, locked(before, tmp_path), 0.0, "train", tmp_path).finding
    assert found.location.line == row_of(edited, code)
    grown = after.totals.computed_nbytes - before.totals.computed_nbytes
    assert 0 < grown < before.totals.computed_nbytes * 2
    assert "more than before (" in found.message


def test_two_places_and_two_kinds_of_peaks_are_not_compared(tmp_path):
    report = inspected(MODEL, tmp_path)
    base = baseline_of(report, tmp_path)
    other = dataclasses.replace(base, place="tpu:v5e")
    with pytest.raises(InputsError, match="on tpu:v5e, and this is gpu:h100"):
        growth_finding(report, Earlier("f", other), 0.1, "train", tmp_path)
    compiled = dataclasses.replace(report, compiled=(Compiled("gpu:h100", peak_nbytes=MIB),))
    with pytest.raises(InputsError, match="is an estimate, and this one is XLA's"):
        growth_finding(compiled, Earlier("f", base), 0.1, "train", tmp_path)
    unknown = dataclasses.replace(report, peak=None)
    with pytest.raises(InputsError, match="and this one is not known"):
        growth_finding(unknown, Earlier("f", base), 0.1, "train", tmp_path)
    with pytest.raises(InputsError, match="in f is not known, and this one is an estimate"):
        growth_finding(report, Earlier("f", baseline_of(unknown, tmp_path)), 0.1, "t", tmp_path)
    assert baseline_of(compiled, tmp_path).peak_by == "xla"
    assert baseline_of(compiled, tmp_path).peak_nbytes == MIB


def test_another_jax_is_said(tmp_path):
    report = inspected(GROWN, tmp_path)
    base = baseline_of(inspected(MODEL, tmp_path), tmp_path)
    old = Earlier("f", dataclasses.replace(base, jax="0.1.2"))
    found = growth_finding(report, old, 0.0, "train", tmp_path).finding
    assert "That was traced by jax 0.1.2, and this by" in found.message


# -- the lockfile


@pytest.mark.integration
@given(st.integers(0, 2**62))
def test_sizes_are_rounded_up_and_by_little(nbytes):
    text = rounded_up(nbytes)
    assert len(text) <= 9
    assert nbytes <= parse_bytes(text) <= max(nbytes * 1.001, nbytes + 1)


def test_sizes_read_well():
    assert rounded_up(0) == "0 B"
    assert rounded_up(128 * MIB) == "128 MiB"
    assert rounded_up(1024**3 + 1) == "1.001 GiB"
    assert rounded_up(1023 * MIB + 1) == "1024 MiB"


names = st.text(min_size=1, max_size=9)


@pytest.mark.integration
@given(
    st.dictionaries(
        names,
        st.builds(
            Baseline,
            names,
            names,
            st.integers(0, 2**50),
            st.just(MIB),
            st.sampled_from(["estimate", "xla"]),
            st.tuples(st.builds(BaselineLine, st.just("model.py f: x = y"), st.just(MIB))),
        ),
    )
)
def test_any_lockfile_is_read_again(made):
    text = lockfile_text(made)
    tomllib.loads(text)
    read = baselines_in(text, "f")
    assert len(read) <= len(made)
    assert lockfile_text(read) == lockfile_text(baselines_in(lockfile_text(read), "f"))
    for name, each in made.items():
        if name in read and each.kept_nbytes < 10_000:
            assert read[name].lines == each.lines


@pytest.mark.parametrize(
    "text",
    [
        "version = ",
        "",
        "version = 2",
        "version = 1\ntargets = 3",
        'version = 1\n[targets.a]\nplace = "cpu"',
        'version = 1\n[targets.a]\nplace = "cpu"\njax = "1"\nkept = "much"',
        'version = 1\n[targets.a]\nplace = "cpu"\njax = "1"\nkept = "1 MiB"\npeak = "1 MiB"',
        'version = 1\n[targets.a]\nplace = "cpu"\njax = "1"\nkept = "1 MiB"\nlines = ["x"]',
        'version = 1\n[targets.a]\nplace = "cpu"\njax = "1"\nkept = "1 MiB"\nlines = 3',
    ],
)
def test_what_is_no_lockfile(text):
    with pytest.raises(InputsError, match=r"my.lock (is no lockfile|has a target that is not)"):
        baselines_in(text, "my.lock")


def test_shares():
    assert parse_growth("2%") == 0.02
    assert parse_growth(" 0.5 %") == 0.005
    for text in ("2", "0.02", "-1%", "much", ""):
        with pytest.raises(ValueError, match="write a percentage such as 2%"):
            parse_growth(text)


# -- the command


@pytest.mark.integration
def test_update_and_hold(lab):
    file = lab.write(toml='max-growth = "2%"')
    code, out, err = lab()
    assert (code, out) == (2, "")
    assert "there is no jaxresid.lock to hold growth against: the same command with --update" in err
    code, out, err = lab("--update")
    assert (code, out) == (0, "All checks passed!\n")
    assert "jaxresid: jaxresid.lock: wrote train\n" in err
    text = (lab.path / "jaxresid.lock").read_text()
    assert '[targets.train]\nplace = "gpu:h100"\n' in text
    assert f"{file} layer: return jnp.tanh(x @ w)" in text
    assert "nothing has changed" in lab("--update")[2]
    assert (lab.path / "jaxresid.lock").read_text() == text
    assert lab.found() == [] == lab.found("train")
    file = lab.write(GROWN, toml='max-growth = "2%"')
    (found,) = lab.found("train")
    assert Path(found["filename"]).name == file
    assert found["severity"] == "error"
    assert found["measured"]["max_growth"] == 0.02
    assert lab.found("--max-growth", "500%") == []
    assert lab("--update", "-q") == (0, "", "")
    assert "JXR823" not in lab("-f", "concise")[1]
    assert (lab.path / "jaxresid.lock").read_text() != text


def test_update_of_one_target_keeps_the_others(lab):
    file = lab.write(toml=f'[tool.jaxresid.targets.other]\ntarget = "{"m"}.py:loss"')
    (lab.path / "m.py").write_text(MODEL)
    lab("--update")
    assert set(baselines_in((lab.path / "jaxresid.lock").read_text(), "f")) == {"train", "other"}
    lab(f"{file}:loss", "--update")
    lock = baselines_in((lab.path / "jaxresid.lock").read_text(), "f")
    assert set(lock) == {"train", "other", f"{file}:loss"}
    assert lab.found(f"{file}:loss", "--max-growth", "0%") == []
    # All of the configuration, and none that it does not have any more.
    lab.write()
    lab("--update")
    assert set(baselines_in((lab.path / "jaxresid.lock").read_text(), "f")) == {"train"}


def test_update_writes_nothing_where_something_failed(lab):
    lab.write(toml='[tool.jaxresid.targets.other]\ntarget = "gone.py:loss"')
    code, _, err = lab("--update")
    assert code == 2
    assert "jaxresid.lock: not written, as not everything could be checked" in err
    assert not (lab.path / "jaxresid.lock").exists()


def test_the_lockfile_is_beside_the_configuration(lab, monkeypatch):
    lab.write(toml='max-growth = "2%"')
    (lab.path / "sub").mkdir()
    monkeypatch.chdir(lab.path / "sub")
    assert lab("--update")[0] == 0
    assert (lab.path / "jaxresid.lock").exists()
    text = (lab.path / "jaxresid.lock").read_text()
    monkeypatch.chdir(lab.path)
    lab("--update")
    assert (lab.path / "jaxresid.lock").read_text() == text
    assert lab("--update", "--baseline", "sub/other.lock")[0] == 0
    assert (lab.path / "sub" / "other.lock").exists()


def test_a_saved_report_as_the_baseline(lab, capsys):
    file = lab.write()
    assert run(["report", f"{file}:loss", "-o", "before.json"]) == 0
    file = lab.write(GROWN)
    target = f"{file}:loss"
    (found,) = lab.found(target, "--max-growth", "2%", "--baseline", "before.json")
    assert "since before.json" in found["message"]
    assert "--update" not in found["help"]
    code, _, err = lab("--max-growth", "2%", "--baseline", "gone.json")
    assert code == 2 and "gone.json" in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--baseline", "main"), "--baseline needs --max-growth"),
        (("--max-growth", "2"), "is not a share; write a percentage such as 2%"),
        (
            ("--max-growth", "2%", "--baseline", "gone"),
            "there is no such file, and no such revision",
        ),
        (("--update", "--baseline", "main"), "--update writes a lockfile, and main is none"),
        (("--max-growth", "2%"), "there is no jaxresid.lock"),
    ],
)
def test_what_is_refused(lab, argv, message):
    lab.write()
    code, out, err = lab("train", *argv)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_a_target_that_the_lockfile_does_not_have(lab):
    file = lab.write()
    lab("--update")
    code, _, err = lab(f"{file}:loss", "--max-growth", "2%")
    assert code == 2
    assert f"jaxresid.lock has no `{file}:loss`; the same command with --update writes it" in err


def test_what_a_table_refuses(lab):
    lab.write(toml="max-growth = 2")
    code, _, err = lab()
    assert code == 2 and "pyproject.toml:5: `max-growth`" in err


@pytest.mark.integration
def test_a_revision_as_the_baseline(lab):
    def git(*argv):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        subprocess.run(["git", *identity, *argv], check=True, capture_output=True)

    git("init", "-q")
    lab.write(toml='max-growth = "2%"', name="model.py")
    git("add", ".")
    git("commit", "-qm", "one")
    assert lab.found("--baseline", "HEAD") == []
    lab.write(GROWN, toml='max-growth = "2%"', name="other.py")
    (found,) = lab.found("--baseline", "HEAD")
    assert "has grown by more than 2% since HEAD" in found["message"]
    assert found["measured"]["targets"] == "train"
    # The same place on both sides.
    (found,) = lab.found("train", "--baseline", "HEAD", "--on", "tpu:v5e")
    assert found["measured"]["on"] == "tpu:v5e"


@pytest.mark.integration
def test_the_lockfile_of_the_page_is_what_update_writes(lab, monkeypatch):
    fixture = ROOT / "fixtures" / "budgets"
    text = (fixture / "jaxresid.lock").read_text()
    if f'jax = "{jax.__version__}"' not in text:
        pytest.skip("another JAX may well keep something else")
    shutil.copytree(fixture, lab.path, dirs_exist_ok=True)
    (lab.path / "jaxresid.lock").unlink()
    monkeypatch.delitem(sys.modules, "model", raising=False)
    assert lab("--update", "-q")[0] == 1  # over its peak
    assert (lab.path / "jaxresid.lock").read_text() == text
    assert "JXR823" not in lab("-f", "concise")[1]
