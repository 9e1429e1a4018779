"""Python's garbage collector while files are linted: it runs rarely, and as before afterwards."""

import gc
from pathlib import Path

import pytest

from jaxresid.base.violations import Linted
from jaxresid.linter.run.workers import CandidateFile, lint_files

FILES = [CandidateFile("a.py", Path("/a.py"), b"")]


@pytest.fixture(autouse=True)
def _thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


class Recorder:
    """What notes the threshold in place of linting, and may fail."""

    over_limit_files = frozenset()

    def __init__(self, error=None):
        self.thresholds, self.error = [], error

    def content(self, raw, path, absolute):
        self.thresholds.append(gc.get_threshold())
        if self.error is not None:
            raise self.error
        return Linted(path, ())


@pytest.mark.parametrize(
    ("before", "during"),
    [((700, 10, 5), (50_000, 10, 5)), ((80_000, 10, 10), (80_000, 10, 10)), ((0, 3, 4), (0, 3, 4))],
)
def test_cycles_are_looked_for_rarely_while_files_are_linted(before, during):
    lint = Recorder()
    gc.set_threshold(*before)
    assert lint_files(FILES, 1, lint, Recorder) == [Linted("a.py", ())]
    assert lint.thresholds == [during]
    assert gc.get_threshold() == before


def test_an_error_leaves_it_as_it_was():
    gc.set_threshold(700, 10, 5)
    with pytest.raises(ZeroDivisionError):
        lint_files(FILES, 1, Recorder(ZeroDivisionError()), Recorder)
    assert gc.get_threshold() == (700, 10, 5)
