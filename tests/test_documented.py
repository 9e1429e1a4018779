"""Every public name is documented: itself, its fields, its parameters, its methods."""

import dataclasses
import importlib.util
import inspect
import re

import pytest

import jaxresid
from jaxresid.base.urls import rule_page
from jaxresid.linter.rules import KNOWN
from tests.where import ROOT

# Aliases of types, which docs/generate.py spells out.
ALIASES = {"Applicability", "GroupBy", "Mode", "ResidualKey", "Origin", "Severity", "__version__"}


def described(doc, heading):
    """The names that a section of a docstring describes."""
    section = re.split(r"^\w+:$", doc.partition(f"\n{heading}:\n")[2], flags=re.MULTILINE)[0]
    return set(re.findall(r"^  (\w+): ", section, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(set(jaxresid.__all__) - ALIASES))
def test_public_name_is_documented(name):
    value = getattr(jaxresid, name)
    doc = inspect.getdoc(value)
    assert value.__doc__
    if dataclasses.is_dataclass(value):
        assert described(doc, "Attributes") >= {f.name for f in dataclasses.fields(value)}
    elif inspect.isfunction(value):
        assert described(doc, "Args") == set(inspect.signature(value).parameters)
    for key, member in vars(value).items() if inspect.isclass(value) else ():
        if not key.startswith("_") and isinstance(member, (property, type(lambda: 0))):
            assert member.__doc__, key


def test_aliases_are_all_that_is_not_documented_itself():
    for name in ALIASES:
        assert not inspect.isclass(getattr(jaxresid, name))


@pytest.fixture(scope="module")
def generate():
    """The module docs/generate.py, which needs no Sphinx."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_on_the_page(generate):
    page = generate.api()
    for name in jaxresid.__all__:
        assert re.search(rf":: jaxresid\.{name}$", page, re.MULTILINE), name


def test_every_command_and_option_is_on_the_page(generate):
    from jaxresid.cli import COMMANDS

    page = generate.command_line()
    assert re.findall(r"^## jaxresid (\w+)$", page, re.MULTILINE) == list(COMMANDS)
    assert "\n`--mesh-mode [auto|explicit]`\n: auto: " in page


def test_every_rule_has_a_page_where_its_findings_point(generate, monkeypatch):
    monkeypatch.setattr("jaxresid.base.urls.DOCUMENTATION", "https://docs.example")
    pages = generate.rule_pages()
    assert set(pages) == {f"{name}.md" for name in KNOWN.values()} | {"index.md"}
    for code, name in KNOWN.items():
        end = f"reference/rules/{name}.html"
        assert rule_page(name) == f"https://docs.example/{end}"
        page = pages[f"{name}.md"]
        assert page.startswith(f"# {code}: {name}\n")
        assert f"# <-- {code}" in page
        assert f"| {code} | [{name}]({name}.md) |" in pages["index.md"]


def test_a_rule_page_shows_bad_fixed_and_good(generate):
    page = generate.rule_pages()["checkpointed-loss.md"]
    order = [page.index(part) for part in ("## Reported", "\nfixed:\n", "## Not reported")]
    assert order == sorted(order)


def test_help_is_no_markup(generate):
    text = "`a --b` of f32[2], <fn>_inputs; --top N"
    assert generate._prose(text) == r"`a --b` of f32\[2\], \<fn\>\_inputs; `--top` N"
