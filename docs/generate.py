"""The pages of reference/ that come from the code: the command line, the rules, the Python API."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import get_args

import click

import jaxresid
from jaxresid.advice.check.rules import traced_rules
from jaxresid.base.text.short_repr import Shown
from jaxresid.cli import cli
from jaxresid.cli.help import ExplainedCommand, grouped
from jaxresid.linter.rule import Documented, Example
from jaxresid.linter.rules import all_rules

# How many bad and good examples of a rule its page has.
_EXAMPLES = 3
_MARK = re.compile(r"[ \t]*# !$", re.MULTILINE)
# The first digit of a code -> what its rules are about.
_FAMILIES = {
    "0": "Comments that silence findings",
    "1": "Where a checkpoint is",
    "2": "Policies",
    "3": "Names of values",
    "4": "`prevent_cse`",
    "5": "The checkpoint API",
    "6": "Modules of Flax and Equinox",
    "8": "What only a trace can tell",
}
# The heading of a part of the Python API -> the modules that its names come from.
_API = {
    "Inspect and advise": (
        *("jaxresid.advice.compile.report", "jaxresid.advice.compare.compare"),
        *("jaxresid.advice.plan.joint.api", "jaxresid.advice.plan.emit.policy"),
        "jaxresid.advice.check.check",
        *("jaxresid.advice.compile.ahead_of_time", "jaxresid.advice.sweep.sweep"),
        *("jaxresid.advice.diff.difference", "jaxresid.advice.oom.oom"),
    ),
    "Lint": ("jaxresid.linter",),
    "Inputs and options": (
        *("jaxresid.targets.inputs", "jaxresid.settings.config", "jaxresid.base.option_types"),
        "jaxresid.xla.places",
        "jaxresid._version",
    ),
    "Results": ("jaxresid.serialization.files", "jaxresid.results"),
    "Findings": ("jaxresid.base.violations",),
    "Errors": ("jaxresid.base.errors",),
}


def write(docs: Path) -> None:
    """Write the generated pages, and delete those of rules that are gone."""
    reference = docs / "reference"
    pages = {reference / "command-line.md": command_line(), reference / "api.md": api()}
    rules = reference / "rules"
    pages |= {rules / name: text for name, text in rule_pages().items()}
    rules.mkdir(exist_ok=True)
    for old in set(rules.iterdir()) - set(pages):
        old.unlink()
    for page, text in pages.items():
        if not page.exists() or page.read_text() != text:  # what did not change is not built again
            page.write_text(text)


def command_line() -> str:
    """Return the page on all commands and their options."""
    context = click.Context(cli, info_name="jaxresid")
    parts = ["# The command line", "Every command of jaxresid, with all of its options."]
    parts += [_prose(cli.help or "")]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts += _command(command, click.Context(command, info_name=name, parent=context))
    return "\n\n".join(parts) + "\n"


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## jaxresid {context.info_name}"
    yield f"```sh\n{context.get_usage().removeprefix('Usage: ')}\n```"
    yield _prose(command.help or "")
    if isinstance(command, ExplainedCommand) and command.examples:
        lines = [f"# {what}\n{line}" for what, line in command.examples]
        yield f"```sh\n{chr(10).join(lines)}\n```"
    for group, options in grouped(command, context):
        yield f"**{group.value}**"
        for each in options:
            record = each.get_help_record(context)
            assert record is not None
            names, text = record
            yield f"`{names}`\n: {_prose(text)}"


def _prose(text: str) -> str:
    """Return the text of a help as Markdown: options as code, nothing else as markup."""
    code = re.compile(r"(`[^`]+`)|(?<!\w)(--[a-z][\w-]*)|([\\*_<>\[\]{}|#])")

    def escaped(match: re.Match[str]) -> str:
        span, option, character = match.groups()
        return span or (f"`{option}`" if option else f"\\{character}")

    return code.sub(escaped, inspect.cleandoc(text))


def rule_pages() -> dict[str, str]:
    """Return file name -> the page of each rule, and the index."""
    rules = (*all_rules(), *traced_rules())
    pages = {f"{rule.name}.md": _rule(rule) for rule in rules}
    return pages | {"index.md": _rule_index(rules)}


def _rule_index(rules: Sequence[type[Documented]]) -> str:
    parts = [
        "# The rules",
        "Every rule of `jaxresid lint` and `jaxresid check`. Errors raise or silently do the wrong "
        "thing, warnings save no memory, and infos are off in the linter unless they are selected: "
        "[configuration](../configuration.md). `jaxresid explain CODE` prints the page of a rule.",
    ]
    for digit, title in _FAMILIES.items():
        rows = ["| code | name | severity | fix | what it finds |", "|---|---|---|---|---|"]
        for rule in rules:
            info = rule.info()
            if info.code[3] == digit:
                rows.append(
                    f"| {info.code} | [{info.name}]({info.name}.md) | {info.severity} |"
                    f" {info.fix or ''} | {info.summary} |"
                )
        parts += [f"## {title}", "\n".join(rows)]
    parts += [
        "The linter does not find rules of JXR8: they need a trace, so "
        "[`jaxresid check`](../../how-to/check-in-ci.md) reports them, with the figures that it "
        "measured. It reports [verdicts](../../explanation/verdicts.md) under the linter's codes "
        "as well.",
        "Files that cannot be linted are reported as `invalid-syntax`, `over-limit` or "
        "`unreadable`, and what is wrong with the configuration of a directory below as "
        "`invalid-configuration`. These are errors and have no code.",
    ]
    names = "\n".join(rule.name for rule in rules)
    parts.append(f"```{{toctree}}\n:hidden:\n\n{names}\n```")
    return "\n\n".join(parts) + "\n"


def _rule(rule: type[Documented]) -> str:
    info = rule.info()
    facts = {
        "severity": info.severity,
        "found by": "`jaxresid check`" if info.traced else "`jaxresid lint`",
        "by default": "on" if info.default else "off",
        "fix": f"sometimes, {info.fix}" if info.fix else "none",
        "needs": "to see the whole project" if info.project else "",
        "JAX": info.jax or "every version",
        "since": f"jaxresid {info.since}",
    }
    rows = ["| | |", "|---|---|", *(f"| {key} | {fact} |" for key, fact in facts.items() if fact)]
    parts = [f"# {info.code}: {info.name}", info.summary, "\n".join(rows)]
    for heading, body in info.sections.items():
        parts += [f"## {heading}", body]
    parts += ["## Reported"]
    for example in rule.bad[:_EXAMPLES]:
        parts += _example(example, info.code)
    parts += ["## Not reported"]
    for example in rule.good[:_EXAMPLES]:
        parts += _example(example, info.code)
    parts += [
        "## Silence it",
        f"`# jaxresid: ignore[{info.code}]` on the line, or `ignore` in "
        f"[the configuration](../configuration.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _example(example: Example, code: str) -> Iterator[str]:
    if example.jax is not None:
        yield f"With JAX {'.'.join(map(str, example.jax))}:"
    yield _code(_MARK.sub(f"  # <-- {code}", example.source))
    for path, text in example.files.items():
        yield f"with `{path}`:"
        yield _code(text)
    if example.fixed is not None:
        yield "fixed:"
        yield _code(example.fixed)


def _code(source: str) -> str:
    return f"```python\n{source.strip()}\n```"


def api() -> str:
    """Return the page on every public name.

    Raises:
      ValueError: A public name has no part of the page.
    """
    parts = [
        "# The Python interface",
        "Every public name of `jaxresid`. The functions that trace take options in the first call "
        "and your function's arguments in the second, as `jax.grad` does. All results are frozen "
        "dataclasses; those that can be shown have `print`, and those with a "
        "[schema](json.md) have `to_json`.",
    ]
    left = list(jaxresid.__all__)
    for heading, modules in _API.items():
        names = [name for m in modules for name in jaxresid._PUBLIC[m].split()]
        left = [name for name in left if name not in names]
        parts += [f"## {heading}", *(f"```{{eval-rst}}\n{_documented(n)}\n```" for n in names)]
    if left:
        raise ValueError(f"no part of the page on the Python interface has {', '.join(left)}")
    return "\n\n".join(parts) + "\n"


def _documented(name: str) -> str:
    """Return the directive that documents a public name."""
    value = getattr(jaxresid, name)
    full = f"jaxresid.{name}"
    if inspect.isclass(value) and issubclass(value, Exception):
        return f".. autoexception:: {full}"
    if inspect.isclass(value):
        inherited = "\n   :inherited-members: Shown" if issubclass(value, Shown) else ""
        return f".. autoclass:: {full}\n   :members:{inherited}"
    if inspect.isfunction(value):
        return f".. autofunction:: {full}"
    if isinstance(value, str):
        return f".. py:data:: {full}\n\n   The version of jaxresid, a string."
    if isinstance(value, UnionType):
        words = [f":py:class:`{member.__name__}`" for member in get_args(value)]
    else:
        words = [f"``{word!r}``" for word in get_args(value)]
    return f".. py:data:: {full}\n\n   {', '.join(words[:-1])} or {words[-1]}."
