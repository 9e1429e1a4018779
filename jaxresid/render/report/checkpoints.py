"""The cost and benefit of each checkpoint, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from jaxresid.base.text.units import format_bytes, format_flops
from jaxresid.render.report.cost import at_least
from jaxresid.render.style.words import percent, place_text, source_notes, verdict_text
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import Checkpoint, Finding, Verdict

LEGEND = "with → without each"
_INDENT = 2
STYLES = {Verdict.EARNS: "bold green", Verdict.COSTS_MEMORY: "bold red"}


def site_parts(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the head of a checkpoint in parts.

    They are `Layer`, `model.py:31`, `called at model.py:49`, `policy dots_saveable`,
    `prevent_cse=False`, `×8 calls`, those of them that apply.
    """
    policy = f"policy {checkpoint.policy}" if checkpoint.policy else "no policy"
    parts = (
        checkpoint.function,
        *_places(checkpoint),
        policy,
        "" if checkpoint.prevent_cse else "prevent_cse=False",
        _times(checkpoint),
    )
    return tuple(part for part in parts if part)


def _places(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield where a checkpointed function is defined, and where it is called."""
    defined, called = checkpoint.defined, checkpoint.location
    if defined is not None:
        yield place_text(defined)
    if called is not None and called != defined:
        yield f"called at {place_text(called)}" if defined else place_text(called)


def figure_parts(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the figures of a checkpoint: kept and peak bytes, recomputed FLOPs, and the saving.

    Bytes are those with the checkpoint → without it (`LEGEND`).
    """
    c = checkpoint
    bound = at_least(c.uncosted)
    share = percent(c.recompute_fraction, 1) if c.recompute_fraction and c.recompute_flops else ""
    about = "about " if bound else ""
    peak = "XLA's peak" if c.by == "xla" else "peak"
    parts = []
    if c.kept_nbytes or c.kept_without_nbytes != 0:
        parts.append(f"kept {_change(c.kept_nbytes, c.kept_without_nbytes)}")
    if c.peak_nbytes is not None:
        parts.append(f"{peak} {_change(c.peak_nbytes, c.peak_without_nbytes)}")
    if c.recompute_flops is not None:
        added = f"recompute {bound}{format_flops(c.recompute_flops)}"
        parts.append(added + f" ({about}{share})" * bool(share))
    saved = c.saved_per_gflop
    if saved is not None and saved > 0:
        # More FLOPs than are counted buy less for each of them.
        most = "<= " if bound else ""
        parts.append(f"{most}{saved / 1024**2:,.2f} MiB saved per GFLOP")
    if c.ratio is not None:
        parts.append(f"r {c.ratio:.2f}")
    return tuple(parts)


def confirmation_text(checkpoint: Checkpoint) -> str:
    """Return how the verdict stands to the other one, of XLA and the estimate.

    An example is `the estimate differs: saves nothing, peak 1.20 GiB → 1.21 GiB`. The text is ''
    where the two agree, or XLA was not to be asked.
    """
    if checkpoint.unconfirmed:
        return f"unconfirmed by XLA: {checkpoint.unconfirmed}"
    estimated = checkpoint.estimated
    if estimated is None or estimated.verdict == checkpoint.verdict:
        return ""
    peaks = map(format_bytes, (estimated.peak_nbytes, estimated.peak_without_nbytes))
    return f"the estimate differs: {verdict_text(estimated.verdict)}, peak {' → '.join(peaks)}"


def _change(nbytes: int, without: int | None) -> str:
    """Return a figure with a checkpoint and without it."""
    shown = format_bytes(nbytes)
    other = "unknown" if without is None else format_bytes(without)
    return f"{shown} either way" if shown == other else f"{shown} → {other}"


def finding_text(finding: Finding, checkpoint: Checkpoint) -> str:
    """Return a finding about a checkpoint: `saved-but-recomputed, model.py:41: ...`.

    The place is left out where it is that of the checkpoint.
    """
    place = ""
    if finding.location is not None and finding.source != checkpoint.source:
        notes = (place_text(finding.location), *source_notes(finding.source))
        place = "".join(f", {note}" for note in notes)
    message = "; ".join(part.rstrip(".") for part in (finding.message, finding.help) if part)
    return f"{finding.name}{place}: {message}"


def render_checkpoints(checkpoints: Sequence[Checkpoint]) -> Iterator[RenderableType]:
    """Yield the block of the text report on checkpoints."""
    if not checkpoints:
        yield Text("no checkpoint", style="bold")
        return
    count = len(checkpoints)
    title = f"{count} checkpoint{'s' * (count != 1)}"
    yield Text.assemble((title, "bold"), (f"  {LEGEND}", "dim"))
    for c in checkpoints:
        function, *others = site_parts(c)
        verdict = Text(verdict_text(c.verdict), style=STYLES.get(c.verdict, "bold yellow"))
        head = [verdict, Text(function, style="bold"), *map(Text, others)]
        yield FlowingParts(head, separator="  ", indent=_INDENT)
        below: list[RenderableType] = [FlowingParts(figure_parts(c)), Text(c.reason)]
        notes = source_notes(c.source)
        if notes:
            below.insert(0, Text(" · ".join(notes), style="dim"))
        if confirmation := confirmation_text(c):
            below.append(Text(confirmation, style="yellow"))
        below += [Text(finding_text(f, c), style="yellow") for f in c.findings]
        for line in below:
            yield Padding(line, (0, 0, 0, _INDENT))


def _times(checkpoint: Checkpoint) -> str:
    calls, trips = checkpoint.calls, checkpoint.trips
    if calls > 1 and trips not in (1, calls):
        return f"×{calls} calls, {trips} trips"
    if calls > 1:
        return f"×{calls} calls"
    return f"×{trips} trips" if trips > 1 else ""
