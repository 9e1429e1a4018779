"""Precision and recall on labelled lines of released packages (tests/data/real_code_labels.jsonl:
what a good linter says at a line, and what a naive one says wrongly)."""

import json
from collections import defaultdict

import pytest
from packages import unpacked

from jaxresid.linter.run.files import LintRun
from jaxresid.settings.config import Config, Selection
from tests.where import DATA

pytestmark = pytest.mark.slow

LABELS = [json.loads(line) for line in (DATA / "real_code_labels.jsonl").read_text().splitlines()]
# The labels' own names -> our codes.
CODES = {
    "whole-fn": {"JXR101"},
    "last-stage": {"JXR102"},
    "around-scan": {"JXR103"},
    "nested": {"JXR106"},
    "trivial-body": {"JXR107"},
    "not-differentiated": {"JXR108"},
    "scan-no-remat": {"JXR109"},
    "policy-uncalled": {"JXR201"},
    "policy-called": {"JXR202"},
    "everything-saveable": {"JXR205"},
    "cse-off-outside-scan": {"JXR401"},
    "scan-cse": {"JXR404"},
    "static-args": {"JXR504"},
    "private-import": {"JXR506"},
}
ABSTAIN, SURE = 0.6, 0.7


@pytest.fixture(scope="module")
def found():
    """(source, path, row) -> the violations there, with every rule on."""
    by_source = defaultdict(set)
    for label in LABELS:
        by_source[label["source"]].add(label["path"])
    result = {}
    for source, paths in by_source.items():
        tree = unpacked(source.removeprefix("pypi:"))
        selection = Selection(select=("ALL",))
        lint = LintRun(Config(tree, selections=(selection,)), complete=[tree])
        for path in paths:
            file = next(p for p in (tree / path, *tree.glob(f"*/{path}")) if p.exists())
            for violation in lint.file(path, file).violations:
                for row in range(violation.span.row, violation.span.end_row + 1):
                    result.setdefault((source, path, row), []).append(violation)
    return result


@pytest.mark.parametrize("label", LABELS, ids=lambda v: v["id"])
def test_no_naive_finding(label, found):
    if label["confidence"] < ABSTAIN:
        pytest.skip("the label itself is unsure")
    wrong = {code for rule in label["tempting_rules"] for code in CODES[rule]}
    here = found.get((label["source"], label["path"], label["line"]), [])
    assert [v for v in here if v.code in wrong and v.severity != "info"] == []


def test_most_of_what_is_expected_is_found(found):
    expected = [
        (label["id"], rule, bool(CODES[rule] & codes(label, found)))
        for label in LABELS
        if label["confidence"] >= SURE
        for rule in label["expected_rules"]
    ]
    missed = [(i, rule) for i, rule, hit in expected if not hit]
    assert len(expected) >= 8
    assert len(missed) <= 0.2 * len(expected), missed


def codes(label, found):
    return {v.code for v in found.get((label["source"], label["path"], label["line"]), [])}
