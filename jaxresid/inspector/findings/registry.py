"""The searches for findings: each module of this package that has a `SEARCH` is one of them.

What is about host memory, or about one of the checkpoints, is looked for elsewhere.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from jaxresid.inspector import findings
from jaxresid.inspector.findings.collect import Search
from jaxresid.inspector.findings.proposals import Proposal
from jaxresid.inspector.findings.search import (
    FindingContext,
    FindingSearch,
    Part,
    SearchedSubject,
)
from jaxresid.results import CompiledChange, Finding, Report


@functools.cache
def registered() -> tuple[FindingSearch[Any], ...]:
    """Return the searches of all modules, in the order in which a report tells of them."""
    modules = [
        importlib.import_module(f"{findings.__name__}.{module.name}")
        for module in pkgutil.iter_modules(findings.__path__)
    ]
    searches: list[FindingSearch[Any]] = [m.SEARCH for m in modules if hasattr(m, "SEARCH")]
    return tuple(sorted(searches, key=lambda search: search.rank))


def about_code(subject: SearchedSubject, report: Report) -> Iterator[Search[Finding]]:
    """Yield the searches for findings about code, to be told of before the proposals."""
    return _searches("code", FindingContext(subject, report))


def proposing(subject: SearchedSubject, report: Report) -> Iterator[Search[Proposal]]:
    """Yield the searches for findings whose worth is that of a rewrite.

    On a mesh there are none but those of what is gathered inside `shard_map`, whose types are those
    of one device, and of what a compiler left whole: how it splits what is rewritten is not known.
    """
    return _searches("proposal", FindingContext(subject, report))


def about_arguments(
    subject: SearchedSubject, report: Report, donating: CompiledChange | None
) -> Iterator[Search[Finding]]:
    """Yield the searches for findings about arguments, to be told of after the proposals.

    Args:
      subject: the subject.
      report: its report.
      donating: what the compiler says of the missing donation; None where it was not asked.
    """
    return _searches("arguments", FindingContext(subject, report, donating))


def _searches(part: Part, context: FindingContext) -> Iterator[Search[Any]]:
    for search in registered():
        if search.part == part and search.applies(context):
            yield " and ".join(search.names), functools.partial(search.run, context)
