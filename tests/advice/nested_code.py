"""What the tests of loops in segments and in groups share."""

import importlib
import itertools

import pytest

from jaxresid.advice.plan.drafts import Drafts

ON = "gpu:h100"
numbers = itertools.count()


def module(folder, text):
    """The module that a text is."""
    name = f"nested_{next(numbers)}"
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(name)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drafts(planning, check):
    places = [*(nest.place for nest in planning.variants.nests()), *planning.menus.places]
    return Drafts(
        planning.subject, planning.variants, places, planning.plain, check, lambda _: None
    )
