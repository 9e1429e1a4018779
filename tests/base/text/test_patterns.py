"""No pattern of the package takes long, whatever it is matched against.

`python -m tests.base.text.package_patterns` lists them.
"""

import re

import pytest

from tests.base.text.package_patterns import patterns
from tests.base.text.pumping import pump


@pytest.mark.integration
def test_no_pattern_backtracks():
    used = patterns()
    slow = [(use.place, found) for use in used if (found := pump(use.pattern, use.methods))]
    assert not slow, "\n".join(map(str, slow))
    assert len(used) > 250


# Of each kind one that has been here, and what it became.
_ATTRIBUTE = rb"\.(?:[\s\\]|#[^\n]*)*(\w+)"
_GLOB = ".*a" * 8 + ".*b"


@pytest.mark.parametrize(
    ("pattern", "method", "other"),
    [
        (_ATTRIBUTE, "finditer", rb"\.[\s\\]*+(\w+)"),
        (_GLOB, "fullmatch", "(?>.*?a)" * 8 + ".*b"),
        (r"^\s*reserved ", "finditer", r"^[^\S\n]*+reserved "),
        (r"\w+\(", "finditer", r"(?<!\w)\w++\("),
        (r"checkpoint.*transpose", "finditer", "checkpoint.{0,80}?transpose"),
    ],
    ids=["exponential", "glob", "blank lines", "quadratic", "beginnings"],
)
def test_what_backtracks_is_seen(pattern, method, other):
    assert pump(re.compile(pattern, re.DOTALL | re.MULTILINE), (method,)) is not None
    assert pump(re.compile(other, re.DOTALL | re.MULTILINE), (method,)) is None
