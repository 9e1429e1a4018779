"""Write new checkpoints as policies of Haliax, for its `Stacked` modules, scans and folds."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jaxresid.advice.plan.emit.jax_policies import saved_and_offloaded
from jaxresid.advice.plan.source.file_edits import FileRewrite, FileRewrites, UnwritableError
from jaxresid.advice.plan.source.locate import calls_at, calls_reached, related
from jaxresid.advice.plan.source.observed_calls import ObservedCalls
from jaxresid.advice.plan.source.snippets import merged
from jaxresid.advice.plan.source.writing import write_at_place
from jaxresid.inspector.subject.base import Subject
from jaxresid.linter.fixes import edits
from jaxresid.results import Location, PlannedPart, PlannedSite

_LOOPS = frozenset({"haliax.scan", "haliax.fold", "haliax.map"})
_STACKS = frozenset(
    f"{module}.{name}.init"
    for module in ("haliax.nn", "haliax.nn.scan")
    for name in ("Stacked", "BlockSeq")
)
# The names that Haliax gives to what enters an iteration, and the fields for them.
_FIELDS = {"__carry": "save_carries", "__input": "save_inputs"}


@dataclass(eq=False, slots=True)
class OnStacks:
    """Writes checkpoints as `ScanCheckpointPolicy`.

    Attributes:
      nested: Into how many stretches the loop at a place is cut, where it is.
      written: The policies that were written.
      unsaid: What of the plan they do not say, in words.
    """

    nested: dict[Location | None, int] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)

    def joined(self, sites: Sequence[PlannedSite]) -> list[PlannedSite]:
        """Return the places with each loop of Haliax that is cut as one place, noting the cuts."""
        cut = {s.location: s for s in sites if s.kind == "segments" and s.library == "haliax"}
        bodies = {s.location for s in sites if s.kind == "scan"}
        for location, site in cut.items():
            (part,) = merged(site.parts)
            length = site.trips // site.calls
            if len(part.segments) > 1 or length % part.segments[0]:
                self.unsaid.append(
                    f"haliax cuts a loop once, into equal stretches, not {length} iterations into"
                    f" {' of '.join(map(str, part.segments))}"
                )
                continue
            self.nested[location] = length // part.segments[0]
            if part.policy is not None:
                self.unsaid.append(f"haliax saves nothing around the stretches, not {part.policy}")
        kept = [s for s in sites if cut.get(s.location) is not s]
        plain = (PlannedPart(1, False),)
        return kept + [
            replace(s, kind="scan", parts=plain) for at, s in cut.items() if at not in bodies
        ]

    def __call__(
        self, files: FileRewrites, site: PlannedSite, subject: Subject, calls: ObservedCalls
    ) -> None:
        """Write a checkpoint that is not there yet.

        Raises:
          UnwritableError: It cannot be written.
        """
        if site.kind != "scan" or site.library != "haliax" or site.location is None:
            write_at_place(files, site, subject, calls)
            return
        file, call, keyword = _made(files, site.location)
        name = file.spelling("haliax.nn.ScanCheckpointPolicy", "haliax.nn", call)
        text = f"{name}({', '.join(self._fields(file, site))})"
        edit = edits.set_keyword(file.source, call, keyword, text)
        if edit is None:
            raise UnwritableError(file.where(call.lineno), f"give it {keyword}={text} by hand")
        file.edit(edit)
        self.written.append(text)

    def _fields(self, file: FileRewrite, site: PlannedSite) -> list[str]:
        """Return the arguments of the policy of a place."""
        part = merged(site.parts)[0]
        count = self.nested.get(site.location)
        nested = [] if count is None else [f"nested={count}"]
        if not part.checkpointed:
            return ["disable=True", *nested]
        found = saved_and_offloaded(part.policy)
        if found is None:
            self.unsaid.append(
                f"a policy of haliax saves by name, not {part.policy}: all is recomputed instead"
            )
        if part.policy is None or found is None:
            return ["simple=True", *nested]
        saved, offloaded = found
        own = [f"{name}={_kept(end, saved, offloaded)}" for end, name in _FIELDS.items()]
        internals = ["save_block_internals", "offload_block_internals"]
        for field_name, names in zip(internals, found, strict=True):
            listed = ", ".join(file.string(n) for n in names if not n.endswith(tuple(_FIELDS)))
            own += [f"{field_name}=[{listed}]"] if listed else []
        return [each for each in own if each != "save_inputs=False"] + nested


def _kept(end: str, saved: Sequence[str], offloaded: Sequence[str]) -> str:
    if any(name.endswith(end) for name in offloaded):
        return '"offload"'
    return str(any(name.endswith(end) for name in saved))


def _made(files: FileRewrites, location: Location) -> tuple[FileRewrite, ast.Call, str]:
    """Return the call that takes the policy of the loop at a location, with its file and keyword.

    Raises:
      UnwritableError: There is none, or several may.
    """
    file = files.at(location.file, location.line)
    reached = set(calls_reached(file, calls_at(file, location)))
    loops = [
        loop.node
        for loop in file.facts.loops
        if loop.qualname in _LOOPS and loop.node in reached and isinstance(loop.node, ast.Call)
    ]
    if len(loops) == 1:
        return file, loops[0], "remat"
    found = [
        (there, call)
        for there in (file, *(files.at(path, 1) for path in related(files, file)))
        for call in there.facts.names.calls
        if _STACKS & set(there.facts.names.qualnames(call.func))
    ]
    if len(found) == 1:
        return (*found[0], "gradient_checkpointing")
    raise UnwritableError(
        file.where(location.line),
        "cannot tell which Stacked.init of the library makes this loop's modules; give it"
        " gradient_checkpointing by hand",
    )
