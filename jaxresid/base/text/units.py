"""Format and parse bytes and FLOPs as people write and read them.

Bytes are formatted in binary units and parsed from binary or decimal ones; FLOPs are formatted in
decimal units.
"""

from __future__ import annotations

import re

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_FACTORS = {unit.lower(): 1024**i for i, unit in enumerate(_BINARY)} | {
    unit.lower(): 1000**i for i, unit in enumerate(("B", "kB", "MB", "GB", "TB", "PB", "EB"))
}
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BYTES = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)")


def format_bytes(nbytes: int) -> str:
    """Return a number of bytes as text such as `12.38 GiB`.

    The unit is binary. There are two decimals, and none for single bytes.
    """
    value = float(nbytes)
    for unit in _BINARY:
        # 1023.996 would print as 1024.00
        if value < 1023.995 or unit == _BINARY[-1]:
            break
        value /= 1024
    return f"{nbytes} B" if unit == "B" else f"{value:.2f} {unit}"


def format_flops(flops: float) -> str:
    """Return a number of FLOPs as text such as `180.39 GFLOP`.

    The unit is decimal. There are two decimals, and none for single operations.
    """
    value = float(flops)
    for unit in _DECIMAL:
        # 999.996 would print as 1000.00
        if abs(value) < 999.995 or unit == _DECIMAL[-1]:
            break
        value /= 1000
    return f"{flops:.0f} FLOP" if not unit else f"{value:.2f} {unit}FLOP"


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text such as `1MiB`, `1.5 GiB`, `2GB` or `4096B` means.

    Raises:
      ValueError: The text is not a size, or one without a unit; the message is for the user.
    """
    match = _BYTES.fullmatch(text.strip())
    factor = _FACTORS.get((match.group(2) or "B").lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size; write a number and a unit, e.g. 1MiB, 1.5GiB")
    nbytes = int(float(match.group(1)) * factor)
    if nbytes and not match.group(2):
        number = match.group(1)
        other = f"{number}GiB or " if nbytes < 1024 else ""
        raise ValueError(f"{text!r} has no unit; write {other}{number}B")
    return nbytes


def parse_budget(text: str) -> int:
    """Return the number of bytes that a size means, such as `12GiB` or `800MB`.

    Raises:
      ValueError: The text is no such size, or leaves no room; the message is for the user.
    """
    nbytes = parse_bytes(text)
    if nbytes <= 0:
        raise ValueError(f"{text!r} leaves no room; write a size such as 12GiB or 800MB")
    return nbytes


def parse_growth(text: str) -> float:
    """Return the share that a percentage means, 0.02 for `2%`.

    Raises:
      ValueError: The text is no percentage; the message is for the user.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*%", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a share; write a percentage such as 2%")
    return float(match[1]) / 100
