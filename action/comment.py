"""Say on a pull request what `jaxresid` found: one comment, which later runs write anew.

    python comment.py RESULTS

RESULTS is the folder that the steps of action.yml fill. The text also goes into the summary of the
run. Without a token or a pull request that is all. Needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# GitHub refuses longer ones.
_LONGEST = 65_000
_PER_PAGE = 100
# A workflow command of `-f github`: its kind, its properties and its message.
_COMMAND = re.compile(r"::(error|warning|notice) .*?::(.*)")
_KINDS = {"error": "error", "warning": "warning", "notice": "info"}
_SHOWN = 20
_HEAD = "### "  # of a target, in the Markdown of `jaxresid diff`
_OUTCOMES = {"0": "passed", "1": "failed"}


class Api(Protocol):
    """The part of GitHub's REST interface that a comment needs."""

    def call(self, method: str, path: str, payload: dict[str, str] | None = None) -> Any:
        """Return the JSON that GitHub answers with; None where it answers nothing."""


class RefusedError(Exception):
    """GitHub refuses a call; the message says which, and why."""


@dataclass(frozen=True)
class Results:
    """What the steps found.

    Attributes:
      lint: the output of `jaxresid lint -f github`; None where it did not run.
      check: that of `jaxresid check -f github`.
      diff: the Markdown of `jaxresid diff`.
      codes: the exit codes of those that ran, by their names.
      errors: what they wrote to stderr, by their names.
    """

    lint: str | None
    check: str | None
    diff: str | None
    codes: dict[str, str]
    errors: dict[str, str]


def results_in(folder: Path) -> Results:
    """Return the results that the steps left in a folder."""

    def read(name: str) -> str | None:
        file = folder / name
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else None

    names = ("lint", "check", "diff")
    return Results(
        read("lint.txt"),
        read("check.txt"),
        read("diff.txt"),
        {name: code.strip() for name in names if (code := read(f"{name}.code")) is not None},
        {name: error.strip() for name in names if (error := read(f"{name}.err")) is not None},
    )


def body_of(results: Results, marker: str, longest: int | None = _LONGEST) -> str:
    """Return the text of the comment, as Markdown that begins with the marker.

    Args:
      results: what the steps found.
      marker: what tells our comment from others.
      longest: cut what is longer; None for all of it.
    """
    parts = [marker, "## jaxresid", *_changes(results)]
    parts += _findings("lint", results.lint, results)
    parts += _findings("check", results.check, results)
    if (code := results.codes.get("diff")) is not None:
        parts.append("### Against the base")
        if code in _OUTCOMES and results.diff:
            parts.append(results.diff.strip())
        else:
            parts += ["The two could not be compared.", _fenced(_end(results.errors.get("diff")))]
    text = "\n\n".join(parts)
    if longest is not None and len(text) > longest:
        rest = "*Cut here: the summary of the run has all of it.*"
        text = f"{_whole_lines(text[:longest])}\n\n{rest}"
    return text + "\n"


def _changes(results: Results) -> Iterator[str]:
    """Yield the list of what the comparison says of each target, how its peak moves first."""
    if results.codes.get("diff") not in _OUTCOMES:
        return
    heads = [line for line in (results.diff or "").splitlines() if line.startswith(_HEAD)]
    if heads:
        more = [f"- ... and {len(heads) - _SHOWN} more"] if len(heads) > _SHOWN else []
        yield "\n".join([*(f"- {head.removeprefix(_HEAD)}" for head in heads[:_SHOWN]), *more])


def _findings(name: str, output: str | None, results: Results) -> Iterator[str]:
    code = results.codes.get(name)
    if code is None:
        return
    found = [match for line in (output or "").splitlines() if (match := _COMMAND.fullmatch(line))]
    if code in _OUTCOMES:
        yield f"**{name}** {_OUTCOMES[code]}: {_counted([match[1] for match in found])}"
    else:
        yield f"**{name}** could not run, or not all of it:"
        yield _fenced(_end(results.errors.get(name)))
    lines = [_unescaped(match[2]).splitlines()[0] for match in found]
    if lines:
        rest = len(lines) - _SHOWN
        more = [f"... and {rest} more"] if rest > 0 else []
        yield _fenced("\n".join([*lines[:_SHOWN], *more]))


def _counted(kinds: Sequence[str]) -> str:
    counts = [(kinds.count(kind), word) for kind, word in _KINDS.items()]
    return ", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in counts if n) or "no findings"


def _unescaped(text: str) -> str:
    for escaped, char in (("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(escaped, char)
    return text


def _fenced(text: str) -> str:
    """Return text as a block of code, which no text in it can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(longest + 1, 3)
    return f"{fence}text\n{text}\n{fence}"


def _end(text: str | None) -> str:
    return "\n".join((text or "it printed nothing").splitlines()[-10:])


def _whole_lines(text: str) -> str:
    """Return a text that was cut up to its last whole line, with an open block of code closed."""
    text = text.rpartition("\n")[0]
    opened = None
    for line in text.splitlines():
        if match := re.match(r"`{3,}", line):
            opened = match[0] if opened is None else None if line == opened else opened
    return text if opened is None else f"{text}\n{opened}"


def publish(api: Api, repository: str, number: int, body: str, marker: str) -> str:
    """Write the comment, or write it anew; return what was done.

    Of several comments with the marker the first is kept and the others are deleted, as where two
    runs wrote at the same time.

    Args:
      api: GitHub.
      repository: `owner/name`.
      number: the number of the pull request.
      body: the text, which begins with the marker.
      marker: what tells our comment from others.

    Raises:
      RefusedError: The token may not write comments.
    """
    kept = None
    for comment in list(_own(api, repository, number, marker)):
        path = f"/repos/{repository}/issues/comments/{comment['id']}"
        try:
            if kept is not None:
                api.call("DELETE", path)
            elif comment["body"].replace("\r\n", "\n").strip() == body.strip():
                kept = "unchanged"
            else:
                api.call("PATCH", path, {"body": body})
                kept = "updated"
        except RefusedError:  # somebody else's, which quotes ours
            continue
    if kept is None:
        api.call("POST", f"/repos/{repository}/issues/{number}/comments", {"body": body})
        return "created"
    return kept


def _own(api: Api, repository: str, number: int, marker: str) -> Iterator[dict[str, Any]]:
    page = 1
    while True:
        query = f"per_page={_PER_PAGE}&page={page}"
        found: Sequence[dict[str, Any]] = api.call(
            "GET", f"/repos/{repository}/issues/{number}/comments?{query}"
        )
        yield from (each for each in found if (each.get("body") or "").startswith(marker))
        if len(found) < _PER_PAGE:
            return
        page += 1


class GitHub:
    """GitHub's REST interface."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._token = token

    def call(self, method: str, path: str, payload: dict[str, str] | None = None) -> Any:
        """Return the JSON that GitHub answers with; None where it answers nothing.

        Raises:
          RefusedError: It refuses, or cannot be reached.
        """
        request = urllib.request.Request(
            self._url + path,
            None if payload is None else json.dumps(payload).encode(),
            {
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self._token}",
                "Content-Type": "application/json",
                "X-GitHub-Api-Version": "2022-11-28",
            },
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as e:
            raise RefusedError(f"{method} {path.partition('?')[0]}: {e.code} {e.reason}") from e
        except OSError as e:
            raise RefusedError(f"{method} {path.partition('?')[0]}: {e}") from e
        return json.loads(text) if text else None


def marker_of(name: str) -> str:
    """Return the marker of a comment with a name, which is no end of an HTML comment."""
    return f"<!-- jaxresid {re.sub(r'[^A-Za-z0-9_.]+', '-', name).strip('-')} -->"


def pull_request(event: Path) -> int | None:
    """Return the number of the pull request that an event is about; None for other events."""
    try:
        found = json.loads(event.read_text(encoding="utf-8")).get("pull_request") or {}
    except (OSError, ValueError, AttributeError):
        return None
    number = found.get("number")
    return number if isinstance(number, int) else None


def main(argv: Sequence[str]) -> int:
    """Write the summary and the comment; return the exit code."""
    environment = os.environ
    marker = marker_of(environment.get("COMMENT_NAME", ""))
    results = results_in(Path(argv[0]))
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as file:
            file.write(body_of(results, marker, None))
    number = pull_request(Path(environment.get("GITHUB_EVENT_PATH", "")))
    token = environment.get("GITHUB_TOKEN")
    if not token or number is None:
        sys.stdout.write("jaxresid: no comment: there is no token, or no pull request\n")
        return 0
    api = GitHub(environment.get("GITHUB_API_URL", "https://api.github.com"), token)
    try:
        body = body_of(results, marker)
        done = publish(api, environment["GITHUB_REPOSITORY"], number, body, marker)
    except RefusedError as e:  # from a fork, for instance, the token may only read
        sys.stdout.write(f"::warning title=jaxresid::no comment: {e}\n")
        return 0
    sys.stdout.write(f"jaxresid: comment {done}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
