"""The pytest plugin in a project of its own: marks, the fixture, snapshots, xdist, and its cost."""

import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import jaxresid
import jaxresid.testing
from tests.where import ROOT

pytest_plugins = "pytester"
# As where nothing is installed, and with the entry point of an installation left out.
LOADED = ("-p", "jaxresid.pytest_plugin", "-p", "no:jaxresid", "-p", "no:cacheprovider")
MODEL = """
import jax, jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def layer(w, h):
    h = checkpoint_name(h @ w, "hidden")
    return jnp.sin(jnp.tanh(h))


def loss(weights, x):
    for w in weights:
        x = layer(w, x)
    return jnp.mean(x**2)


policy = jax.checkpoint_policies.save_only_these_names("hidden")


def checkpointed(weights, x):
    for w in weights:
        x = jax.checkpoint(layer, policy=policy)(w, x)
    return jnp.mean(x**2)


def inputs(batch=4096, width=256, layers=4):
    struct = jax.ShapeDtypeStruct
    return [struct((width, width), jnp.float32)] * layers, struct((batch, width), jnp.float32)
"""
ARRAY = 4096 * 256 * 4
PYPROJECT = """
[tool.jaxresid]
on = "tpu:v5e"
[tool.pytest.ini_options]
addopts = "--strict-markers"
pythonpath = ["."]
"""


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """Load what pytester would load, and forget, in each run."""

    def loss(w, x):
        return jnp.sum(jax.checkpoint(lambda x: jnp.sin(x @ w))(x))

    square = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    for place in ("gpu:h100", "tpu:v5e"):
        jaxresid.inspect(loss, on=place)(square, square)


@pytest.fixture
def project(pytester):
    """Write a project's tests, run them, and return the result."""
    pytester.makepyprojecttoml(PYPROJECT)
    number = len(list(pytester.path.glob("model*.py")))

    def run(tests, *argv):
        name = f"model_{abs(hash(pytester.path)) % 10**9}_{number}"
        (pytester.path / f"{name}.py").write_text(MODEL)
        folder = pytester.path / "tests"
        folder.mkdir(exist_ok=True)
        head = f"import pytest\nfrom {name} import *\n"
        (folder / "test_model.py").write_text(head + tests)
        return pytester.runpytest_inprocess(*LOADED, *argv)

    return run


def test_limits_fail_with_the_lines(project):
    result = project(
        """
@pytest.mark.limit_peak("16MiB", on="gpu:h100")
@pytest.mark.limit_kept("12MiB")
def test_over(residuals):
    residuals(loss)(*inputs())

@pytest.mark.limit_peak("1GiB", on="gpu:h100")
@pytest.mark.limit_kept("1GiB")
def test_within(residuals):
    residuals(loss)(*inputs())
"""
    )
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert re.search(
        r"the estimated peak of `loss` is [\d.]+ MiB .* over its budget of 16.00", text
    )
    assert re.search(r"the backward pass of `loss` keeps [\d.]+ MiB, .* budget of 12.00 MiB", text)
    assert re.search(
        r"^ +[\d.]+ MiB  model_\w+.py:\d+  return jnp.sin\(jnp.tanh\(h\)\)$", text, re.M
    )
    assert "on gpu:h100, jax" in text
    assert "Traceback" not in text and "fixture.py" not in text


def test_a_limit_inside_the_range_is_a_warning(project):
    peak = _peak("gpu:h100")
    size = f"{(peak.nbytes + peak.high_nbytes) // 2 // 1024}KiB"
    result = project(
        f"""
@pytest.mark.limit_peak("{size}", on="gpu:h100")
def test_close(residuals):
    residuals(loss)(*inputs())
"""
    )
    result.assert_outcomes(passed=1, warnings=1)
    assert "compile=True decides" in result.stdout.str()


def _peak(place):
    namespace = {}
    exec(MODEL, namespace)
    return jaxresid.inspect(namespace["loss"], on=place)(*namespace["inputs"]()).peak


@pytest.mark.integration
def test_places_of_marks_calls_and_the_configuration(project):
    result = project(
        """
def test_configured(residuals):
    assert residuals(loss)(*inputs()).place.name == "tpu:v5e"

def test_called(residuals):
    assert residuals(loss, on="gpu:a100-40")(*inputs()).place.name == "gpu:a100-40"

@pytest.mark.limit_peak("1GiB", on="gpu:h100")
def test_marked(residuals):
    assert residuals(loss)(*inputs()).place.name == "gpu:h100"

@pytest.mark.limit_peak("1MiB", on="gpu:h100")
def test_marked_and_called(residuals):
    residuals(loss, on="tpu:v5e")(*inputs())
"""
    )
    result.assert_outcomes(passed=3, failed=1)
    assert "on gpu:h100, jax" in result.stdout.str()


def test_the_nearest_mark_of_a_place_counts(project):
    result = project(
        """
pytestmark = [pytest.mark.limit_kept("1MiB"), pytest.mark.limit_kept("2MiB", on="gpu:h100")]

@pytest.mark.limit_kept("1GiB")
@pytest.mark.limit_kept("1GiB", on="gpu:h100")
def test_own(residuals):
    residuals(loss)(*inputs())

@pytest.mark.limit_kept("1GiB")
def test_half(residuals):
    residuals(loss)(*inputs())
"""
    )
    result.assert_outcomes(passed=1, failed=1)
    assert "over its budget of 2.00 MiB" in result.stdout.str()
    assert "over its budget of 1.00 MiB" not in result.stdout.str()


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ('limit_peak("12")', "'12' has no unit; write 12GiB"),
        ("limit_peak(12)", "12 is no text; write @pytest.mark.limit_peak"),
        ("limit_kept()", "takes a size and a place"),
        ('limit_peak("1GiB", at="cpu")', "takes a size and a place"),
        ('limit_peak("1GiB", on=3)', "takes a size and a place"),
        ('limit_kept("much")', "is not a size"),
    ],
)
def test_marks_that_are_not_understood(project, mark, message):
    result = project(f"@pytest.mark.{mark}\ndef test_it(residuals):\n    pass\n")
    result.assert_outcomes(errors=1)
    assert message in result.stdout.str()
    assert "limits.py" not in result.stdout.str()


def test_no_mark_is_passed_over(project):
    result = project(
        """
@pytest.mark.limit_peak("1GiB")
def test_without_the_fixture():
    pass

@pytest.mark.limit_kept("1GiB")
def test_without_a_call(residuals):
    residuals(loss)

@pytest.mark.limit_kept("1GiB")
def test_that_fails_for_another_reason(residuals):
    assert not "another reason"
"""
    )
    result.assert_outcomes(errors=1, failed=2)
    text = result.stdout.str()
    assert "@pytest.mark.limit_peak needs the fixture `residuals`" in text
    failures = text.partition("short test summary")[0]  # which has it again in CI
    assert failures.count("never called residuals(loss)(*args)") == 1


HELPERS = """
def test_names(residuals):
    report = residuals(checkpointed)(*inputs())
    residuals.assert_names(report, {"hidden"})

def test_other_names(residuals):
    report = residuals(checkpointed)(*inputs())
    residuals.assert_names(report, {"spare"})

def test_kept(residuals):
    report = residuals(loss)(*inputs())
    residuals.assert_kept(report, "jnp.tanh(h)")
    residuals.assert_kept(report, "jnp.tanh(h)", at_most="1GiB")

def test_kept_too_much(residuals):
    residuals.assert_kept(residuals(loss)(*inputs()), "jnp.tanh(h)", at_most="1MiB")

def test_nothing_kept(residuals):
    residuals.assert_kept(residuals(loss)(*inputs()), "checkpoint_name(")

def test_not_kept(residuals):
    residuals.assert_not_kept(residuals(loss)(*inputs()), "jax.ShapeDtypeStruct")

def test_not_kept_but_is(residuals):
    residuals.assert_not_kept(residuals(loss)(*inputs()), "jnp.tanh(h)")

def test_no_such_line(residuals):
    residuals.assert_not_kept(residuals(loss)(*inputs()), "jnp.tahn")

def test_verdicts(residuals):
    report = residuals(checkpointed)(*inputs())
    verdict = report.checkpoints[0].verdict
    residuals.assert_verdicts(report, str(verdict))
    residuals.assert_verdicts(report, {"layer": str(verdict)})

def test_other_verdicts(residuals):
    residuals.assert_verdicts(residuals(checkpointed)(*inputs()), {"layer": "overridden"})

def test_verdicts_of_none(residuals):
    residuals.assert_verdicts(residuals(loss)(*inputs()), "earns-its-keep")

def test_unknown_checkpoint(residuals):
    residuals.assert_verdicts(residuals(checkpointed)(*inputs()), {"block": "overridden"})

def test_unknown_verdict(residuals):
    residuals.assert_verdicts(residuals(checkpointed)(*inputs()), "earns")
"""


@pytest.mark.integration
def test_helpers(project):
    result = project(HELPERS)
    text = result.stdout.str()
    failed = set(re.findall(r"^FAILED \S+::(\w+)", text, re.M))
    assert failed == {
        "test_other_names",
        "test_kept_too_much",
        "test_nothing_kept",
        "test_not_kept_but_is",
        "test_no_such_line",
        "test_other_verdicts",
        "test_verdicts_of_none",
        "test_unknown_checkpoint",
        "test_unknown_verdict",
    }
    result.assert_outcomes(passed=4, failed=9)
    for words in (
        "16.00 MiB  hidden: kept, not expected",
        "spare: expected, not kept",
        "no line with 'checkpoint_name(' keeps anything",
        "has 'jnp.tahn', so that nothing was tested",
        "expected overridden at ",
        "loss has no checkpoint on tpu:v5e",
        "block  there is no such checkpoint",
        "'earns' is no verdict; one of earns-its-keep, saves-nothing",
    ):
        assert words in text, words


SNAPSHOTS = """
@pytest.mark.parametrize("batch", [8, 4096])
def test_snap(residuals, batch):
    report = residuals(checkpointed)(*inputs(batch))
    residuals.assert_snapshot(report)
    residuals.assert_snapshot(report, "again")
"""


@pytest.mark.integration
def test_snapshots(project, pytester):
    folder = pytester.path / "tests" / "__residuals__" / "test_model"
    missing = project(SNAPSHOTS)
    missing.assert_outcomes(failed=2)
    assert not folder.exists()
    assert "there is no snapshot tests/__residuals__/test_model/test_snap[8].txt; `pytest" in (
        missing.stdout.str()
    )
    project(SNAPSHOTS, "--update-residuals").assert_outcomes(passed=2)
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(files) == {
        f"test_snap[{batch}]{name}.txt" for batch in (8, 4096) for name in ("", ".again")
    }
    text = files["test_snap[4096].txt"]
    assert "checkpointed on tpu:v5e" in text
    assert re.search(r"16.00 MiB  4 x float32\[4096,256\] hidden  model_\w+.py layer: h = ", text)
    assert re.search(r"checkpoint of layer with save_only_these_names\('hidden'\): \w+", text)
    project(SNAPSHOTS).assert_outcomes(passed=2)


@pytest.mark.integration
def test_a_snapshot_that_differs(project, pytester):
    project(SNAPSHOTS, "--update-residuals")
    file = pytester.path / "tests" / "__residuals__" / "test_model" / "test_snap[8].txt"
    good = file.read_text()
    # The same lines further down, and made with another JAX: no difference, and left as it is.
    other = re.sub(r"# jax .*", "# jax 0.6.1", good)
    file.write_text(other)
    project("\n\n" + SNAPSHOTS, "--update-residuals").assert_outcomes(passed=2)
    assert file.read_text() == other
    file.write_text(other.replace("hidden", "spare"))
    result = project(SNAPSHOTS)
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert re.search(r"^E +-.*spare", text, re.M) and re.search(r"^E +\+.*hidden", text, re.M)
    assert f"it was made with jax 0.6.1, this is jax {jax.__version__}" in text
    project(SNAPSHOTS, "--update-residuals").assert_outcomes(passed=2)
    assert file.read_text() == good


def test_names_of_snapshots_are_files(project, pytester):
    project(
        """
@pytest.mark.parametrize("name", ["a/b", "a_b", "x" * 300])
class TestAll:
    def test_it(self, residuals, name):
        residuals.assert_snapshot(residuals(loss)(*inputs(8)))
""",
        "--update-residuals",
    ).assert_outcomes(passed=3)
    files = list((pytester.path / "tests" / "__residuals__" / "test_model").iterdir())
    assert len(files) == 3 and all(len(file.name) < 200 for file in files)


@pytest.mark.integration
def test_with_xdist(project, pytester):
    pytester.makepyprojecttoml(PYPROJECT)
    tests = (
        SNAPSHOTS
        + HELPERS
        + (
            '@pytest.mark.limit_kept("1MiB")\ndef test_over(residuals):\n'
            "    residuals(loss)(*inputs())\n"
        )
    )
    # Once in this process to write the project; then as users do.
    project(tests, "--collect-only", "-q")
    result = pytester.runpytest_subprocess(*LOADED, "-n", "2", "--update-residuals")
    result.assert_outcomes(passed=6, failed=10)
    assert "over its budget of 1.00 MiB" in result.stdout.str()


UNUSED = """
import sys

def test_nothing_is_loaded():
    loaded = [m for m in sys.modules if m.split(".")[0] in ("jax", "jaxlib", "numpy", "libcst")]
    assert loaded == []
    ours = {m for m in sys.modules if m.startswith("jaxresid")}
    assert ours == {"jaxresid", "jaxresid._version", "jaxresid.pytest_plugin"}
"""


@pytest.mark.integration
def test_it_costs_nothing_where_it_is_not_used(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others load numpy
    pytester.makepyfile(UNUSED)
    pytester.runpytest_subprocess(*LOADED).assert_outcomes(passed=1)


def test_it_loads_nothing_but_pytest():
    script = (
        "import pytest, sys; before = set(sys.modules); import jaxresid.pytest_plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["jaxresid", "jaxresid._version", "jaxresid.pytest_plugin"]


FIXTURE = ROOT / "fixtures" / "budgets"


@pytest.mark.integration
def test_the_example_of_the_page(pytester, monkeypatch):
    monkeypatch.syspath_prepend(pytester.path)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    shutil.copytree(FIXTURE, pytester.path, dirs_exist_ok=True)
    snapshot = next((FIXTURE / "__residuals__").rglob("*.txt")).read_text()
    # Another JAX may well keep something else.
    is_same = f"# jax {jax.__version__}\n" in snapshot
    result = pytester.runpytest_inprocess(*LOADED, *(() if is_same else ("-k", "test_the_loss")))
    result.assert_outcomes(failed=1, passed=2 if is_same else 0, deselected=0 if is_same else 2)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    page = (ROOT / "docs" / "how-to" / "pytest.md").read_text()
    assert (FIXTURE / "test_memory.py").read_text() in page
    assert snapshot in page
    if is_same:
        failure = result.stdout.str().partition("test_the_loss_fits ___")[2]
        shown = page.partition("test_the_loss_fits ___")[2].partition("```")[0]
        assert shown.strip("_\n") in failure
