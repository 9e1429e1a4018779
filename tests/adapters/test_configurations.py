"""Targets that are configurations, as far as they need no framework."""

import sys
from pathlib import Path

import pytest

from jaxresid.adapters.configurations import configuration_of
from jaxresid.adapters.registry import framework_reference
from jaxresid.base.errors import TargetError
from jaxresid.targets.references import Reference, parse_reference, reference_from


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("maxtext:base.yml", ("base.yml", "")),
        ("maxtext:base.yml model_name=llama2-7b a=b", ("base.yml", "model_name=llama2-7b a=b")),
        ("maxtext:configs/my.yaml a=gs://x:y/z.yml", ("configs/my.yaml", "a=gs://x:y/z.yml")),
        ("maxtext:my folder/my.yml a=1", ("my folder/my.yml", "a=1")),
    ],
)
def test_references(text, parts):
    assert parse_reference(text) == framework_reference(text) == Reference("maxtext", *parts)
    assert str(Reference("maxtext", *parts)) == text


def test_files_of_references_are_moved():
    assert reference_from(Path(".."), "maxtext:configs/a.yml b=c.yml") == (
        "maxtext:../configs/a.yml b=c.yml"
    )
    assert reference_from(Path(".."), "maxtext:./a.yml") == "maxtext:../a.yml"
    assert reference_from(Path(".."), "maxtext:base.yml a=1") == "maxtext:base.yml a=1"


def test_settings():
    made = configuration_of("base.yml", "a=1 b='x y' c= d=e=f")
    assert (made.file, dict(made.settings)) == (
        "base.yml",
        {"a": "1", "b": "x y", "c": "", "d": "e=f"},
    )
    assert made.words == ("a=1", "b=x y", "c=", "d=e=f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "'a' is no setting: write key=value after base.yml"),
        ("=1", "'=1' is no setting"),
        ("--a=1", "'--a=1' is no setting"),
        ("a=1 b=2 a=3", "a is set twice after base.yml"),
        ("a='1", "are no settings key=value (No closing quotation)"),
    ],
)
def test_what_are_no_settings(text, message):
    with pytest.raises(TargetError) as raised:
        configuration_of("base.yml", text)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("maxtext:base.yml",), "maxtext: needs maxtext, which is not installed here: pip install"),
        (("maxtext:Model(3)",), "maxtext:Model(3) is no configuration: write its file and"),
        (("maxtext:base.yml", "--batch", "4"), "is among its settings"),
    ],
)
def test_what_is_wrong_is_one_line(call, monkeypatch, words, message):
    monkeypatch.setitem(sys.modules, "maxtext", None)
    code, _, err = call("report", *words)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err
