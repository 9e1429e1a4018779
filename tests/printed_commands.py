"""The commands that jaxresid prints, found in its output and run: advice that fails is none.

A command is printed on lines of its own, or in backticks within a sentence, never bare in one: so a
reader sees where it ends, and so does this.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass

import click
from click.testing import CliRunner

from jaxresid.cli import COMMANDS
from jaxresid.cli.main import run

_STARTS = "|".join(COMMANDS)
_OWN_LINES = re.compile(rf"^(?:.*: |\s*)(jaxresid (?:{_STARTS})\b.*(?:(?<= \\)\n.*)*)$", re.M)
_QUOTED = re.compile(rf"`(jaxresid (?:{_STARTS})\b[^`]*)`|'(jaxresid (?:{_STARTS}) --help)'")
_ANYWHERE = re.compile(rf"\bjaxresid (?:{_STARTS})\b")
# Wide enough that no sentence is broken, and with it no command in backticks.
_COLUMNS = "5000"


@dataclass(frozen=True)
class Answer:
    """What a command answered: its exit code, and what it wrote to stdout and stderr."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    def __str__(self):
        return f"$ jaxresid {shlex.join(self.argv)}\n{self.out}{self.err}exit code {self.code}"


def answer(*argv, columns=_COLUMNS, is_apart=False):
    """Return what the command line answers, run in this process.

    On a mesh it is run in one of its own, as JAX makes its devices when it starts, and so it is if
    `is_apart`: a file that has changed is not loaded again.
    """
    if is_apart or "--mesh" in argv:
        env = {**os.environ, "COLUMNS": columns}
        words = [sys.executable, "-m", "jaxresid", *argv]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
        return Answer(argv, done.returncode, done.stdout, done.stderr)
    with CliRunner().isolation(env={"COLUMNS": columns}) as streams:
        code = run(argv)
        out, err = (_text(stream) for stream in streams[:2])
    return Answer(argv, code, out, err)


def _text(stream):
    stream.seek(0)
    return io.TextIOWrapper(stream, "utf-8").read()


def commands_in(text):
    """Return the words after `jaxresid` of each command that a text prints, each command once.

    Raises:
      AssertionError: One is printed where nobody can tell where it ends.
    """
    found = {}
    rest = re.sub(r"^Usage: .*", "", click.unstyle(text), flags=re.MULTILINE)
    for pattern in (_QUOTED, _OWN_LINES):
        for match in pattern.finditer(rest):
            command = match[match.lastindex].replace("\\\n", " ")
            found[tuple(shlex.split(command)[1:])] = match.start(match.lastindex)
        rest = pattern.sub(lambda match: re.sub("[^\n]", " ", match[0]), rest)
    bare = _ANYWHERE.search(rest)
    assert bare is None, f"neither in backticks nor on a line of its own: {rest[bare.start() :]}"
    return sorted(found, key=found.get)


def run_printed(*argv, depth=2, codes=(0, 1), replacing=(), seen=None):
    """Run a command, and all that it prints, and all that these print; return all the answers.

    Args:
      argv: the words after `jaxresid`.
      depth: how many steps to follow from the first command.
      codes: the exit codes of the first command; those of the others are 0 and 1.
      replacing: pairs of a placeholder that a reader has to fill in, as `DUMP`, and what to
        put there.
      seen: the commands that were run before, which are not run again, by their words; those
        that are run here are added.
    """
    seen = {} if seen is None else seen
    first = answer(*argv)
    assert first.code in codes, first
    seen[argv] = first
    answers = [first]
    # What is below the help of a command are examples, of files that are not there.
    follows = depth and "--help" not in argv
    for command in commands_in(first.out + first.err) if follows else ():
        command = tuple(dict(replacing).get(word, word) for word in command)
        if command not in seen:
            answers += run_printed(*command, depth=depth - 1, replacing=replacing, seen=seen)
    return answers
