"""The part of the tests that a run of the gate takes: another each day, all in turn."""

import zlib

# As a share of the tests; more that are skipped for time are a failure.
SKIPPED_AT_MOST = 0.05


def shared(share, items):
    """Return the end of the part before, which may have been skipped, and the K-th of N parts.

    Args:
      share: `K/N`; K may be any integer, such as the number of a day.
      items: pytest's items.
    """
    part, parts = map(int, share.split("/"))
    if parts == 1:
        return [], list(items)
    today, before = ([i for i in items if _number(i, parts) == k % parts] for k in (part, part - 1))
    return before[len(before) - round(SKIPPED_AT_MOST * len(before)) :], today


def _number(item, parts):
    return (zlib.crc32(item.nodeid.encode()) + 1) % parts
