"""What the tests of the command line share."""

import json

import pytest

from jaxresid.cli.main import run
from tests.repositories import git, left_over, repository  # noqa: F401


@pytest.fixture
def call(capsys):
    """Runs the command line; exit code, stdout and stderr."""

    def call(*argv):
        code = run(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def report(call):
    """The JSON of `jaxresid report`, which succeeds."""

    def report(*argv):
        code, out, err = call("report", *argv, "-f", "json")
        assert code == 0, err
        return json.loads(out)

    return report
