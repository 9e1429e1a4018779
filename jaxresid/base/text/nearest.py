"""Suggest what somebody may have meant by an unknown word."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, words: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known word most similar to an unknown one, None if none is similar enough.

    Upper and lower case count as the same.

    Args:
      word: the unknown word.
      words: the known words.
      cutoff: the least similarity, from 0 to 1, as `difflib.get_close_matches` takes it.
    """
    import difflib

    wanted = word.lower()
    folded = {w.lower(): w for w in words}
    close = difflib.get_close_matches(wanted, folded, n=len(folded) or 1, cutoff=cutoff)

    def likeness(known: str) -> tuple[float, int]:
        # Codes differ in a character or two and tie easily: JXR1O1 is JXR101 rather than JXR201.
        ratio = difflib.SequenceMatcher(None, known, wanted).ratio()
        return ratio, sum(a == b for a, b in zip(known, wanted, strict=False))

    return folded[max(close, key=likeness)] if close else None


def nearest_first(word: str, words: Iterable[str]) -> list[str]:
    """Return the known words, the most similar to an unknown one first."""
    import difflib

    wanted = word.lower()
    return sorted(words, key=lambda w: -difflib.SequenceMatcher(None, w.lower(), wanted).ratio())


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return the end of a message, "; did you mean `x`?", or "" where no known word is similar."""
    near = nearest(word, words)
    return f"; did you mean `{near}`?" if near else ""
