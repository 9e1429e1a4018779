"""What somebody may have meant by a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, words: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word most like one that is not, upper and lower case alike; None if none is."""
    import difflib

    folded = {w.lower(): w for w in words}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The end of a message: "; did you mean `x`?", or nothing."""
    near = nearest(word, words)
    return f"; did you mean `{near}`?" if near else ""
