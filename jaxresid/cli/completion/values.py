"""List what may be typed for a parameter: targets, functions, places, policies, codes of rules.

Nothing here imports jax or a file of the user's. What cannot be read completes to nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from jaxresid.base.errors import JaxresidError

# JAX's policies without parameters, which need not import jax to be listed, and ours.
POLICIES = (
    *("none", "as-written", "everything_saveable", "nothing_saveable", "dots_saveable"),
    "dots_with_no_batch_dims_saveable",
)


def targets(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the targets that begin so: configured ones, files, and the functions of a file."""
    if ":" in incomplete:
        return _functions(incomplete, only_targets=True)
    named = [CompletionItem(name, help=f"target {text}") for name, text in _configured()]
    return [*_beginning(named, incomplete), *_files(incomplete)]


def sides(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return what `diff` compares: files, of saved reports too, and functions after a colon."""
    if ":" in incomplete:
        return targets(context, parameter, incomplete)
    return [CompletionItem(incomplete, type="file")]


def references(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return what --inputs may be: functions of the target's file, or of another one."""
    if ":" in incomplete:
        return _functions(incomplete)
    # An option that still lacks its value keeps click from reading the words before it.
    configured = dict(_configured())
    words = [configured.get(word, word) for word in context.obj or ()]
    own = [each for word in words for each in _functions(f"{word.rpartition(':')[0]}:")]
    names = [CompletionItem(str(each.value).rpartition(":")[2]) for each in own]
    return [*_beginning(names, incomplete), *_files(incomplete)]


def policies(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the policies that begin so: names of JAX's, and functions of files."""
    if ":" in incomplete:
        return _functions(incomplete)
    return [*_beginning(map(CompletionItem, POLICIES), incomplete), *_files(incomplete)]


def places(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the places that begin so; the shapes of a TPU once its name is typed."""
    from jaxresid.xla.gpus import GPUS
    from jaxresid.xla.places import topologies

    found = ["cpu", *(f"gpu:{gpu.name}" for gpu in GPUS), *(it.text for it in topologies())]
    if incomplete.count(":") < 2:
        found = list(dict.fromkeys(":".join(text.split(":")[:2]) for text in found))
    return _beginning(map(CompletionItem, found), incomplete)


def codes(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the codes of rules that go on what is typed, which may be a list with commas."""
    from jaxresid.linter.rules import KNOWN

    before, comma, begun = incomplete.rpartition(",")
    found = [CompletionItem(before + comma + code, help=name) for code, name in KNOWN.items()]
    return _beginning(found, before + comma + begun.upper())


def rules(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the codes, or else the names, of rules that begin so."""
    from jaxresid.linter.rules import KNOWN

    names = _beginning(map(CompletionItem, KNOWN.values()), incomplete) if incomplete else []
    return names or codes(context, parameter, incomplete)


def _beginning(items: Iterable[CompletionItem], incomplete: str) -> list[CompletionItem]:
    return [item for item in items if str(item.value).startswith(incomplete)]


def _configured() -> Sequence[tuple[str, str]]:
    from jaxresid.settings.project import project

    with contextlib.suppress(JaxresidError):
        return [(target.name, target.target) for target in project(Path()).targets]
    return ()


def _files(incomplete: str) -> list[CompletionItem]:
    """Return the folders and Python files that begin so, ready to be typed on."""
    folder, begun = os.path.split(incomplete)
    found = []
    with contextlib.suppress(OSError), os.scandir(os.path.expanduser(folder) or ".") as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            is_hidden = entry.name.startswith((".", "__pycache__")) and not begun.startswith(".")
            if not entry.name.startswith(begun) or is_hidden:
                continue
            name = os.path.join(folder, entry.name)
            if entry.is_dir():
                found.append(CompletionItem(f"{name}/"))
            elif name.endswith(".py"):
                found.append(CompletionItem(f"{name}:"))
    return found


def _functions(incomplete: str, *, only_targets: bool = False) -> list[CompletionItem]:
    """Return the functions of the file or module before the colon that begin so."""
    from jaxresid.targets.listing import candidates_of, file_of, functions_of

    place, _, begun = incomplete.rpartition(":")
    found: list[CompletionItem] = []
    with contextlib.suppress(JaxresidError):
        if (path := file_of(place)) is None:
            return []
        if only_targets:
            each = [(c.name, c.signature) for c in candidates_of(path)]
        else:
            each = [(f.name, "") for f in functions_of(path)]
        found = [CompletionItem(f"{place}:{name}", help=what or None) for name, what in each]
    return _beginning(found, f"{place}:{begun}")
