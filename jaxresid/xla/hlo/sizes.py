"""Read sizes as XLA and its allocators write them."""

from __future__ import annotations

# A number and its unit, in two groups: `2.50G`, `530.00MiB`, `6291456 bytes`, `137,430,636,656`.
# None begins within another number, and none is longer than a size can be: logs may hold anything.
SIZE = r"(?<![\d.,])(\d[\d,]{0,30}(?:\.\d{1,9})?) ?([KMGTPE]?)(?:iB|B|\b)"
_UNITS = {unit: 1 << 10 * n for n, unit in enumerate(("", "K", "M", "G", "T", "P", "E"))}


def nbytes(number: str, unit: str = "") -> int:
    """Return the bytes of a size by the two groups of `SIZE`."""
    return round(float(number.replace(",", "")) * _UNITS[unit])
