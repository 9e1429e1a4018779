"""Read the lines of a log without colours and prefixes, each with the process that wrote it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# More of a line is not read: no figure comes later.
_LENGTH = 16_384
_PREFIXES = 8  # that one line may have

# Colours, also where copying lost the escape character.
_COLOUR = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?"
    r"|\[\d{1,3}(?:;\d{1,3})*m(?!\])"
)
# Who wrote a line: Ray, MPI, kubectl, docker compose, srun, and launchers that name the rank.
_WHO = re.compile(
    r"\s*+(?:\d*+\((?P<ray>(?=[^()]*?\bpid=\d)[^()]*+)\)"
    r"|\[(?P<mpi>\d+(?:,\d+)*)\](?:<std(?:err|out)>)?:"
    r"|\[(?P<pod>pod/[^\]\s]+)\]"
    r"|(?P<service>[\w.-]+-\d+)\s+\|(?=\s|$)"
    r"|\[?(?P<rank>(?:rank|host|worker|process|task|node)[ _=:-]?\d+)\]?:?(?=\s)"
    r"|(?P<srun>\d{1,5}):(?=\s))\s?",
    re.IGNORECASE,
)
_WHEN = re.compile(
    r"\s*(?:>(?=\s|$)"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?(?=\s|$)"
    r"|\d\d:\d\d:\d\d(?:[.,]\d+)?(?=\s)"
    r"|[IWEF]\d{4} [\d:.]+\s+\d+ [\w./+-]+:\d+\]"
    r"|[IWEFD]\s+(?:\d+\s+)?[\w./+-]+\.\w+:\d+\]"
    r"|\[(?:I|W|E|F|D|info|warn(?:ing)?|error|debug|critical|fatal)\]"
    r"|(?:INFO|WARN(?:ING)?|ERROR|DEBUG|CRITICAL|FATAL):?"
    r"(?: \d\d-\d\d \d\d:\d\d:\d\d)?(?: \[[\w./-]+:\d+\])?(?=\s)"
    r")\s?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log.

    Attributes:
      text: what it says, without colours, time, level and place in the source of a logger.
      width: how many characters it took with its prefixes.
    """

    text: str
    process: str = ""
    width: int = 0


def read_line(raw: str) -> Line:
    text = raw[:_LENGTH].rstrip("\r\n")
    # What a progress bar wrote before it returned to the beginning of its line is overwritten.
    text = text.rpartition("\r")[2]
    if "\x1b" in text or "m" in text:
        text = _COLOUR.sub("", text)
    width, process = len(text), ""
    for _ in range(_PREFIXES):
        who = _WHO.match(text)
        prefix = who or _WHEN.match(text)
        if prefix is None:
            break
        if who is not None:
            process = next(name for name in who.groups() if name is not None)
        text = text[prefix.end() :]
    return Line(text, process, width)
