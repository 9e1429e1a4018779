"""Every public name is documented: itself, its fields, its parameters, its methods."""

import dataclasses
import inspect
import re

import pytest

import jaxresid

# Aliases of types, which docs/generate.py spells out.
ALIASES = {"Applicability", "GroupBy", "Mode", "Origin", "Profile", "Severity", "__version__"}


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
