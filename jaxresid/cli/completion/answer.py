"""Answer a shell that completes a command line.

The script of a shell (see `scripts`) calls the program with the variable `VARIABLE` set to its
name. The answer is lines: first what follows, then a candidate each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

VARIABLE = "_JAXRESID_COMPLETE"
BREAKS = "_JAXRESID_BREAKS"
_UNSAFE = re.compile(r"([^\w@%+=:,./~-])")


def answer(cli: click.Command, argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the answer to a shell; nothing where the line makes no sense.

    The first line is `files` or `folders`, for the shell to complete them itself, else `words` or,
    where no space may follow, `begun`.

    Args:
      argv: for bash the line up to the cursor; for others the words after the program's, the last
        one up to the cursor.
    """
    shell = environment[VARIABLE]
    if shell == "bash":
        words, raw = _words_of(argv[0] if argv else "")
    else:
        words, raw = list(argv), argv[-1] if argv else ""
    *before, incomplete = words or [""]
    try:
        items = ShellComplete(cli, {"obj": before}, "jaxresid", VARIABLE).get_completions(
            before, incomplete
        )
    except Exception:  # a prompt is no place for errors
        return ""
    kinds = {item.type for item in items}
    if kinds & {"file", "dir"}:
        return "files\n" if "file" in kinds else "folders\n"
    option, equals, _ = incomplete.partition("=")
    prefix = option + equals if equals and option.startswith("--") else ""
    items = [CompletionItem(prefix + str(item.value), help=item.help) for item in items]
    is_begun = items and all(str(item.value).endswith((":", "/")) for item in items)
    kind = "begun" if is_begun else "words"
    return "\n".join([kind, *_lines(items, shell, raw, environment)]) + "\n"


def _words_of(line: str) -> tuple[list[str], str]:
    """Return the words of a line after the first, and the last one as it is typed."""
    words = split_arg_string(line)
    if not line or line[-1].isspace():
        words.append("")
    written = re.findall(r"""(?:[^\s"'\\]|\\.|"[^"]*"?|'[^']*'?)++""", line)
    return words[1:], written[-1] if written and line.endswith(written[-1]) else ""


def _lines(
    items: Sequence[CompletionItem], shell: str, raw: str, environment: Mapping[str, str]
) -> list[str]:
    if shell != "bash":
        return [f"{item.value}\t{_summary(item.help)}" for item in items]
    if raw[:1] in ("'", '"'):
        return [str(item.value) for item in items]
    # To bash a word begins after each of these.
    ends = [raw.rfind(mark) for mark in environment.get(BREAKS, "") if mark in ":="]
    start = max(ends, default=-1) + 1
    return [_UNSAFE.sub(r"\\\1", str(item.value))[start:] for item in items]


def _summary(text: str | None) -> str:
    """Return the beginning of a help up to its first full stop or colon, on one line."""
    return re.split(r"[.:;](?:\s|$)|  \[", " ".join((text or "").split()))[0]
