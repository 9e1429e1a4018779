"""What `check` would tell the author of a program: what is worth most, in a few words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_SEVERITIES = ("info", "warning", "error")
_KIB, _MIB = 2**10, 2**20


def told(findings: list[dict[str, Any]]) -> str:
    """Return the finding that takes most off the peak, or else the severest; `nothing` of none.

    Args:
      findings: of `jaxresid check -f json`.
    """
    if not findings:
        return "nothing"
    most = max(findings, key=_worth)
    others = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    return f"{_sentence(most)}{others}"


def kept_of(finding: dict[str, Any]) -> dict[str, Any]:
    """Return what is told of a finding, without the rest of its JSON."""
    figures = {
        name: value
        for name, value in finding["measured"].items()
        if name.endswith("nbytes") or name in ("on", "recompute_flops")
    }
    kept = {name: finding[name] for name in ("code", "name", "severity", "message")}
    row = (finding["location"] or {}).get("row", 0)
    return {**kept, "where": f"{Path(finding['filename']).name}:{row}", "measured": figures}


def saved_nbytes(measured: dict[str, Any]) -> int:
    """Return how much lower the peak is with what a finding proposes, in bytes; 0 if it is not."""
    after = measured.get("peak_nbytes")
    if (before := measured.get("peak_before_nbytes")) is not None and after is not None:
        return max(0, before - after)
    if (without := measured.get("peak_without_nbytes")) is not None and after is not None:
        return max(0, after - without)
    return 0


def _worth(finding: dict[str, Any]) -> tuple[int, int, int]:
    measured = finding["measured"]
    flops = measured.get("recompute_flops") or 0
    return saved_nbytes(measured), _SEVERITIES.index(finding["severity"]), flops


def _sentence(finding: dict[str, Any]) -> str:
    measured = finding["measured"]
    what = finding["message"].partition(": ")[0].partition(". ")[0]
    place = measured.get("on", "")
    words = f"{finding['code']} {what} ({finding['where']})"
    if saved := saved_nbytes(measured):
        before = measured.get("peak_before_nbytes", measured["peak_nbytes"])
        of = f"{_size(saved)} of the estimated peak of {_size(before)}"
        return f"{words}: {of} on {place}"
    return words


def _size(nbytes: int) -> str:
    return f"{nbytes / _MIB:.2f} MiB" if nbytes >= _MIB else f"{nbytes / _KIB:.1f} KiB"
