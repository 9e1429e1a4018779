"""Word the finding about donated arrays that no output takes over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxresid.base.text.units import format_bytes
from jaxresid.base.thresholds import WORTH_SAYING
from jaxresid.inspector.call.jitted_by import jitted_function
from jaxresid.inspector.findings.donation import source_of_step
from jaxresid.inspector.findings.search import FindingContext, FindingSearch
from jaxresid.inspector.program.ops import Value
from jaxresid.inspector.program.unusable_donation import UnusableLeaf, unusable_donations
from jaxresid.results import Finding

NAME = "unusable-donation"


def donations_without_output(context: FindingContext) -> Iterator[Finding]:
    """Yield the finding about donated arrays that no output takes over, if they are big enough."""
    subject, step = context.subject, context.subject.step
    peak = next((c.peak_nbytes for c in context.report.compiled), None) or (
        None if subject.peak is None else subject.peak.nbytes
    )
    if step is None or peak is None:
        return
    leaves: Sequence[UnusableLeaf] = unusable_donations(step, subject.program)
    called = jitted_function(subject.fun)
    if called.by == "equinox":  # which donates batches with the rest, and says nothing of them
        leaves = [leaf for leaf in leaves if leaf.output is not None]
    nbytes = sum(leaf.value.nbytes for leaf in leaves)
    if not leaves or nbytes < WORTH_SAYING * peak:
        return
    biggest = sorted(leaves, key=lambda leaf: -leaf.value.nbytes)[:3]
    listed = "; ".join(map(_unusable, biggest))
    more = f"; and {len(leaves) - 3} more" if len(leaves) > 3 else ""
    helps = []
    if any(leaf.output is not None for leaf in leaves):
        helps.append("return the new values in the shape and dtype of the old ones")
    if any(leaf.output is None for leaf in leaves):
        helps.append("do not donate what does not come back")
    yield Finding(
        NAME,
        f"{called.name} donates {format_bytes(nbytes)} that no output can take over, so this saves"
        f" nothing: {listed}{more}",
        source_of_step(subject.fun, step),
        help=", and ".join(helps),
        measured={
            "nbytes": nbytes,
            "peak_nbytes": peak,
            "leaves": [leaf.path for leaf in leaves],
            "avals": [_aval(leaf.value) for leaf in leaves],
            "outputs": [leaf.output_path or None for leaf in leaves],
        },
    )


def _unusable(leaf: UnusableLeaf) -> str:
    """Return why an array is not taken over, in words."""
    text = f"{leaf.path} {_aval(leaf.value)}"
    if leaf.output is None:
        return f"{text} does not come back"
    if _aval(leaf.output) != _aval(leaf.value):
        return f"{text} comes back as {_aval(leaf.output)} ({leaf.output_path})"
    if leaf.output.memory != leaf.value.memory:
        return f"{text} comes back in {leaf.output.memory} memory ({leaf.output_path})"
    return f"{text}: another donated array has taken its output ({leaf.output_path})"


def _aval(v: Value) -> str:
    return f"{v.dtype}[{','.join(map(str, v.shape))}]"


SEARCH = FindingSearch([NAME], "arguments", 1, donations_without_output)
