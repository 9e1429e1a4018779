"""What the tests of adapters share: the command line, in the folder of the models."""

from pathlib import Path

import pytest

from tests.cli.conftest import call, report  # noqa: F401


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setenv("COLUMNS", "80")
