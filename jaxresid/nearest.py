"""What somebody may have meant by a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, words: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word most like one that is not, upper and lower case alike; None if none is."""
    import difflib

    wanted = word.lower()
    folded = {w.lower(): w for w in words}
    close = difflib.get_close_matches(wanted, folded, n=len(folded) or 1, cutoff=cutoff)

    def likeness(known: str) -> tuple[float, int]:
        # Codes differ in a character or two and tie easily: JXR1O1 is JXR101 rather than JXR211.
        ratio = difflib.SequenceMatcher(None, known, wanted).ratio()
        return ratio, sum(a == b for a, b in zip(known, wanted, strict=False))

    return folded[max(close, key=likeness)] if close else None


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The end of a message: "; did you mean `x`?", or nothing."""
    near = nearest(word, words)
    return f"; did you mean `{near}`?" if near else ""
