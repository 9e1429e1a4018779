"""The pytest plugin: marks that limit memory, and the fixture `residuals`.

pytest loads this module in every run of every project, so it imports nothing but pytest: jax and
the rest of jaxresid are loaded by the first test that uses the fixture.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jaxresid.testing.fixture import Residuals

_MARKS = {
    "limit_peak": "fail if the peak of what the test gives to the fixture `residuals` is above"
    ' `size`, such as "12GiB", on the place `on`, such as "gpu:h100"',
    "limit_kept": "fail if the backward pass of what the test gives to the fixture `residuals`"
    " keeps more than `size` in device memory, arguments aside",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-residuals`."""
    parser.getgroup("jaxresid").addoption(
        "--update-residuals",
        action="store_true",
        help="Write the snapshots of residuals anew where they differ.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    for name, meaning in _MARKS.items():
        config.addinivalue_line("markers", f"{name}(size, *, on=None): {meaning}")


@pytest.fixture
def residuals(request: pytest.FixtureRequest) -> Residuals:
    """Report on functions, `residuals(loss)(*args)`, and hold them against the test's marks."""
    from jaxresid.testing.fixture import Residuals
    from jaxresid.testing.limits import limits_of

    return Residuals(
        limits=limits_of(_marks(request.node)),
        node=request.node,
        updates=bool(request.config.getoption("update_residuals")),
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose mark nothing would apply."""
    if _marks(item) and "residuals" not in getattr(item, "fixturenames", ()):
        name = _marks(item)[0].name
        pytest.fail(
            f"@pytest.mark.{name} needs the fixture `residuals`: take it as a parameter, and call"
            " residuals(loss)(*args)",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that passed without giving anything to the fixture that has a limit."""
    result = yield
    if marks := _marks(item):
        fixture = getattr(item, "funcargs", {}).get("residuals")
        if fixture is not None and not fixture.calls:
            pytest.fail(
                f"@pytest.mark.{marks[0].name}: the test never called residuals(loss)(*args), so"
                " nothing was held against the limit",
                pytrace=False,
            )
    return result


def _marks(item: pytest.Item) -> list[pytest.Mark]:
    """Return the marks of a test that limit memory, that nearest to the test first."""
    return [mark for name in _MARKS for mark in item.iter_markers(name)]
