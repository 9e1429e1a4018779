"""What every test of the inspector needs: the CPU backend, and the JAX that runs."""

import gc
import os
import signal
import sys
import tempfile
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

from jaxresid.base import crashes
from jaxresid.xla import places
from tests.shares import SKIPPED_AT_MOST, shared

# Examples of the lint rules, which tests/rule_examples.py reads.
collect_ignore = ["linter/rules"]

# What crashes is to fail a test, and not to be a warning of a report.
crashes.RAISES.set(True)

# Garbage collection walks all that is alive, which is much here: the tests themselves, and jaxprs.
# At Python's own thresholds that is a third of the time it takes to collect the tests.
gc.set_threshold(100_000, 20, 100)

# pytest rewrites each module with asserts; without its bytecode it would in every worker and run.
_NO_BYTECODE = sys.dont_write_bytecode
sys.dont_write_bytecode = False


def pytest_collection_finish(session):
    sys.dont_write_bytecode = _NO_BYTECODE
    gc.collect()
    gc.freeze()


# The same examples in every run, so that what fails can be run again and what passed passes in the
# gate; `pytest --hypothesis-profile=explore` looks for others.
_EASY = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("explore", **_EASY, database=None)
hypothesis.settings.register_profile("same", **_EASY, derandomize=True)
hypothesis.settings.load_profile("same")


@pytest.fixture
def interruptible():
    """SIGINT interrupts this process and those that it starts.

    A shell's background jobs, and so the tests in one, start with SIGINT ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _own_search_path():
    """A target's folder is put before all else; there a test may have a json.py of its own, which
    every process that a later test spawns would import."""
    before = sys.path[:]
    yield
    sys.path[:] = before


@pytest.fixture(scope="session")
def jax_version():
    """`(0, 12, 0)`, to key what legitimately differs between versions of JAX."""
    return tuple(int(n) for n in jax.__version__.split(".")[:3])


@pytest.fixture(scope="session")
def one_minus_square(jax_version):
    """Whether tanh keeps `one_minus_square` alone (0.11.2) or `tanh` and `sub` (before)."""
    return jax_version >= (0, 11, 2)


# No test may find, or leave, what another run has compiled.
_COMPILED = tempfile.TemporaryDirectory(prefix="jaxresid-tests-")
os.environ["JAXRESID_CACHE_DIR"] = _COMPILED.name


def pytest_addoption(parser):
    parser.addoption(
        "--share",
        metavar="K/N[,K/N]",
        help="of the tests marked `integration` or `slow`, the K-th of N parts; of the others all,"
        " or a part of them too. K may be any integer, such as that of a day; before it come the"
        " last 5 % of the part before it, which may have been skipped for time",
    )
    parser.addoption(
        "--until",
        metavar="SECONDS",
        type=float,
        help="skip the tests that have not begun by then, in seconds since 1970; more than 5 % are"
        " a failure",
    )


_OUT_OF_TIME = "the gate's time is over"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    until = item.config.getoption("--until")
    if until is not None and time.time() > until:
        pytest.skip(_OUT_OF_TIME)


def _out_of_time(config):
    """Return the reports of tests that were skipped for time, and whether they are too many."""
    stats = config.pluginmanager.get_plugin("terminalreporter").stats
    skipped = [r for r in stats.get("skipped", ()) if _OUT_OF_TIME in r.longreprtext]
    ran = sum(len(stats.get(word, ())) for word in ("passed", "failed", "error", "skipped"))
    return skipped, len(skipped) > SKIPPED_AT_MOST * ran


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput") and _out_of_time(session.config)[1]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    skipped, too_many = _out_of_time(config)
    if skipped:
        terminalreporter.section(f"skipped, as {_OUT_OF_TIME}")
        for report in skipped:
            terminalreporter.line(report.nodeid)
        more = ", which is more than 5 %: a failure" if too_many else ""
        terminalreporter.line(f"{len(skipped)} tests were skipped as {_OUT_OF_TIME}{more}")


def pytest_collection_modifyitems(config, items):
    if shares := config.getoption("share"):
        share, _, others = shares.partition(",")
        long, short = [], []
        for item in items:
            is_long = any(map(item.get_closest_marker, ("integration", "slow")))
            (long if is_long else short).append(item)
        before, today = shared(share, long)
        before_short, short = shared(others or "1/1", short)
        place = {item: i for i, item in enumerate(items)}
        kept = [
            *sorted(before + before_short, key=place.get),
            *sorted(today + short, key=place.get),
        ]
        config.hook.pytest_deselected(items=list(set(items).difference(kept)))
        items[:] = kept
    for mark, place in (("tpu", "tpu:v5e"), ("gpu", "gpu:h100")):
        reason = places.why_unavailable(places.parse_place(place))
        if reason is not None:
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(pytest.mark.skip(reason=reason))
