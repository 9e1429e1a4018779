"""Change a checkpoint that is in the code: its policy, or that it is there at all."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence

from jaxresid.advice.plan.source.call_numbers import Part, chosen
from jaxresid.advice.plan.source.file_edits import FileRewrite, FileRewrites, UnwritableError
from jaxresid.advice.plan.source.locate import (
    calls_at,
    checkpointed_name,
    last_name,
    related,
    sites_reached,
)
from jaxresid.base.violations import Edit
from jaxresid.linter.fixes import edits, unwrapping
from jaxresid.linter.resolve.facts import Facts, Site
from jaxresid.results import Location

# What is left when their checkpoint goes is the function that was there before. A linen class
# without one has another name, and with it its parameters.
_UNWRAPPED = frozenset({"jax", "haiku", "equinox", "haliax", "nnx"})
_MARKS = (b"checkpoint", b"remat")


def written_checkpoint(
    files: FileRewrites,
    function: str,
    location: Location | None,
    defined: Location | None = None,
) -> tuple[FileRewrite, Site]:
    """Return the checkpoint in source that a traced checkpoint came from, with its file.

    Args:
      files: The user's files.
      function: The name of what is checkpointed.
      location: Where it is called.
      defined: Where it is defined.

    Raises:
      UnwritableError: No such checkpoint can be seen, or it may be one of several.
    """
    if location is None:
        raise UnwritableError(
            function, "the line of this checkpoint is not known; change it by hand"
        )
    where = f"{location.file}:{location.line}"
    file = files.at(location.file, location.line)
    at = defined and (os.path.realpath(files.path(defined.file)), defined.line)
    gone_through = _checkpoints_called(files, file, location)
    reached = gone_through or _checkpoints_in_arguments(files, file, location)
    for found in (reached, _sites(file), _in_related_files(files, file)):
        same = [(f, s) for f, s in found if at is not None and _defined_at(f, s) == at]
        named = [(f, s) for f, s in found if checkpointed_name(f.facts, s) == last_name(function)]
        # What wraps a function before it is checkpointed, and an instance that is called, have
        # names that say nothing: it is the one that the call goes through, or one of a library.
        others = [(f, s) for f, s in found if found is gone_through or s.api.library != "jax"]
        chosen = list({id(s.node): (f, s) for f, s in same or named or others}.values())
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            lines = ", ".join(f.where(s.node.lineno) for f, s in chosen[:4])
            raise UnwritableError(
                where,
                f"cannot tell which checkpoint of {function} is meant ({lines}); change it by hand",
            )
    raise UnwritableError(where, f"no checkpoint of {function} was found; change it by hand")


def _defined_at(file: FileRewrite, site: Site) -> tuple[str, int] | None:
    """Return the file and line of the function that a checkpoint in source wraps, where known."""
    node = site.definition or file.facts.target(site)
    return None if node is None else (os.path.realpath(file.path), node.lineno)


def _checkpoints_called(
    files: FileRewrites, file: FileRewrite, location: Location
) -> list[tuple[FileRewrite, Site]]:
    """Return the checkpoints that what is called at a location went through."""
    calls = calls_at(file, location)
    return [site for call in calls for site in sites_reached(files, file, call.func)]


def _checkpoints_in_arguments(
    files: FileRewrites, file: FileRewrite, location: Location
) -> list[tuple[FileRewrite, Site]]:
    """Return the checkpoints that the arguments of a call at a location went through."""
    return [
        site
        for call in calls_at(file, location)
        for given in (*call.args, *(k.value for k in call.keywords))
        for site in sites_reached(files, file, given)
    ]


def _sites(file: FileRewrite) -> list[tuple[FileRewrite, Site]]:
    return [(file, site) for site in file.facts.sites]


def _in_related_files(files: FileRewrites, file: FileRewrite) -> list[tuple[FileRewrite, Site]]:
    """Return the checkpoints of the files that are related to this one."""
    found: list[tuple[FileRewrite, Site]] = []
    for path in related(files, file):
        try:
            other = files.at(path, 1)
        except UnwritableError:
            continue
        if any(mark in other.old for mark in _MARKS):
            found += _sites(other)
    return found


def remove_checkpoint(file: FileRewrite, site: Site) -> None:
    """Remove a checkpoint from the source.

    Raises:
      UnwritableError: What it leaves would be something else than before.
    """
    is_class = isinstance(site.definition, ast.ClassDef)
    is_method = site.definition is not None and not is_class
    if site.api.loop or not (site.api.library in _UNWRAPPED or is_method):
        raise UnwritableError(
            file.where(site.node.lineno),
            "without its checkpoint the module and its parameters would have other names; remove"
            " it by hand and give the module its present name",
        )
    fix = unwrapping.remove_checkpoint(file.facts, site)
    if fix is None:
        raise UnwritableError(
            file.where(site.node.lineno),
            "the code around this checkpoint has to change with it; remove it by hand",
        )
    for edit in fix.edits:
        file.edit(edit)


def set_policy(file: FileRewrite, site: Site, policy: str | None) -> None:
    """Give a checkpoint a policy; None takes its policy away.

    Raises:
      UnwritableError: The arguments that it is given cannot be seen, or are shared with others.
    """
    where = file.where(site.node.lineno)
    if "policy" not in site.api.keywords:
        raise UnwritableError(where, f"{site.qualname} takes no policy; use jax.checkpoint")
    if site.arguments.dynamic or len(site.arguments.positional) > 1:
        raise UnwritableError(
            where, f"not all arguments of this checkpoint are visible; {_by_hand(policy)}"
        )
    text = file.policy(policy, site.node)
    given = site.arguments.keywords.get("policy")
    owner = next((c for c in site.calls if given in c.keywords), None)
    if given is not None and owner is None:
        raise UnwritableError(where, f"its policy comes from a dictionary; {_by_hand(policy)}")
    own = site.node if isinstance(site.node, ast.Call) else None
    if owner is not None and owner is not own and _is_shared(file.facts, owner, site):
        if own is None:
            raise UnwritableError(
                file.where(owner.lineno),
                f"other checkpoints share this policy; {_by_hand(policy)}",
            )
        owner, given, text = own, None, text or "None"
    if text is None:
        edit = None if given is None or owner is None else _without_policy(file, owner, given)
        if given is not None and edit is None:
            raise UnwritableError(where, _by_hand(policy))
    elif given is not None:
        edit = edits.replace(file.source, given.value, text)
    elif own is not None:
        edit = edits.set_keyword(file.source, own, "policy", text)
        if edit is None:
            raise UnwritableError(where, _by_hand(policy))
    else:
        _configure(file, site, text)
        return
    if edit is not None:
        file.edit(edit)


def split_checkpoint(
    files: FileRewrites, file: FileRewrite, site: Site, location: Location, parts: Sequence[Part]
) -> None:
    """Treat some calls of a checkpointed function differently from others.

    Args:
      files: The user's files.
      file: The file of the checkpoint.
      site: The checkpoint in source.
      location: Where the function is called.
      parts: How many of the calls are treated how, in program order.

    Raises:
      UnwritableError: The function is not called there as it is, or not in a loop.
    """
    there = files.at(location.file, location.line)
    where = there.where(location.line)
    made = site.node
    plain = site.target
    calls = [
        c
        for c in calls_at(there, location)
        if c.func is made or made in there.facts.names.origins(c.func)
    ]
    if there is not file or len(calls) != 1 or not isinstance(made, ast.Call) or plain is None:
        raise UnwritableError(where, "cannot treat only some of the calls differently here")
    if site.api.library != "jax" or site.arguments.dynamic or len(site.arguments.positional) > 1:
        raise UnwritableError(where, "cannot treat only some of the calls differently here")
    (call,) = calls
    texts = []
    for part in parts:
        if part.checkpointed:
            texts.append(_with_policy(file, site, made, part.policy))
        else:
            texts.append(file.text(plain))
    file.edit(edits.replace(file.source, call.func, chosen(file, call, texts, parts)))


def _with_policy(file: FileRewrite, site: Site, made: ast.Call, policy: str | None) -> str:
    """Return a call of `jax.checkpoint` as text, as it would be with another policy."""
    given = site.arguments.keywords.get("policy")
    if given is not None and given not in made.keywords:
        raise UnwritableError(file.where(made.lineno), _by_hand(policy))
    text = file.policy(policy, made)
    kept = [file.text(a) for a in made.args]
    kept += [
        f"{k.arg}={file.text(k.value)}" if k.arg else f"**{file.text(k.value)}"
        for k in made.keywords
        if k is not given
    ]
    if text is not None:
        kept.append(f"policy={text}")
    return f"{file.text(made.func)}({', '.join(kept)})"


def _by_hand(policy: str | None) -> str:
    return f"give it policy={policy} by hand" if policy else "remove its policy by hand"


def _is_shared(facts: Facts, owner: ast.Call, site: Site) -> bool:
    return any(owner in other.calls for other in facts.sites if other is not site)


def _without_policy(file: FileRewrite, owner: ast.Call, given: ast.keyword) -> Edit | None:
    """Return the edit that removes the keyword, and a partial that would bind nothing more."""
    if len(owner.args) + len(owner.keywords) == 2 and owner.args and file.facts.is_partial(owner):
        return edits.replace(file.source, owner, file.text(owner.args[0]))
    return edits.remove_argument(file.source, owner, given.value)


def _configure(file: FileRewrite, site: Site, policy: str) -> None:
    """Give a policy to a decorator that has no arguments yet."""
    if site.api.factory:
        file.wrap(site.node, "", f"(policy={policy})")
        return
    partial = file.spelling("functools.partial", "functools", site.node)
    file.wrap(site.node, f"{partial}(", f", policy={policy})")
