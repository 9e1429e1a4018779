"""The registry of findings: what a module has to give, and what else there has to be for it."""

import collections

from jaxresid.inspector.findings.registry import registered
from jaxresid.linter.rules import KNOWN


def test_each_search_has_a_place_of_its_own():
    places = collections.Counter((search.part, search.rank) for search in registered())
    assert set(places.values()) == {1}
    assert {search.part for search in registered()} == {"code", "proposal", "arguments"}


def test_each_finding_has_a_code():
    names = [name for search in registered() for name in search.names]
    assert len(names) == len(set(names))
    assert set(names) <= set(KNOWN.values())


def test_they_come_in_the_order_in_which_a_report_tells_of_them():
    proposals = [search.names[0] for search in registered() if search.part == "proposal"]
    assert proposals[:3] == ["logits-at-peak", "gathered-weights-kept", "needless-loop-state"]
    assert proposals[-1] == "activations-left-whole"
