"""Write new checkpoints as settings of the modules, where `--diff` writes them at the call.

A Linen class becomes `nn.remat` of itself; a method of an NNX or Equinox module, and the body of
an `nnx.scan`, gets a decorator. Haiku has no such setting, and Flax none for a call that names what
is no array. These, and what is no module of the framework, are written as `--diff` does.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxresid.advice.plan.source.file_edits import FileRewrite, FileRewrites, UnwritableError
from jaxresid.advice.plan.source.libraries import library_of
from jaxresid.advice.plan.source.locate import (
    calls_at,
    calls_reached,
    definition_of,
    last_name,
    loaded_classes,
    module_library,
)
from jaxresid.advice.plan.source.new import calls_of, is_through_class, static_arguments
from jaxresid.advice.plan.source.observed_calls import ObservedCalls
from jaxresid.advice.plan.source.snippets import merged
from jaxresid.advice.plan.source.writing import write_at_place
from jaxresid.base.option_types import Framework
from jaxresid.base.violations import Edit, Span
from jaxresid.inspector.subject.base import Subject
from jaxresid.linter.resolve.names import External
from jaxresid.results import Location, PlannedPart, PlannedSite

_REMATS = {
    "linen": "flax.linen.remat",
    "nnx": "flax.nnx.remat",
    "equinox": "equinox.filter_checkpoint",
}
_SCANS = {"linen": "flax.linen.scan", "nnx": "flax.nnx.scan"}
_DEPTH = 8


@dataclass(eq=False, slots=True)
class OnModules:
    """Writes checkpoints as settings of the modules of one framework.

    Attributes:
      library: The framework.
      written: The setting that each definition was given, and the places that have none.
      unsaid: In words, of which calls the plan differs and the setting does not.
    """

    library: Framework
    written: dict[ast.stmt | PlannedSite, str] = field(default_factory=dict)
    unsaid: list[str] = field(default_factory=list)

    def __call__(
        self, files: FileRewrites, site: PlannedSite, subject: Subject, calls: ObservedCalls
    ) -> None:
        """Write a checkpoint that is not there yet.

        Raises:
          UnwritableError: It cannot be written.
        """
        location = site.location
        if location is None or not any(part.checkpointed for part in site.parts):
            write_at_place(files, site, subject, calls)
            return
        is_users = site.kind == "call" and site.library is None
        if is_users and site.defined and library_of(files.path(location.file)) is not None:
            self._where_defined(files, site, site.defined)
            return
        file = files.at(location.file, location.line)
        if site.kind == "scan" and (loop := self._scan(file, location)) is not None:
            there, body = _body(files, file, loop, site.function, location)
            self._set(there, body, self._part(site), ", prevent_cse=False")
            return
        if site.kind != "call" or module_library(files, file, site.function) != self.library:
            write_at_place(files, site, subject, calls)
            return
        # Modules of Haiku are no arguments of a checkpoint.
        keywords = (
            None if self.library == "haiku" else self._keywords(files, file, location, site, calls)
        )
        if keywords is None:
            write_at_place(files, site, subject, calls)
            self.written[site] = ""
        else:
            there, owner = _class(files, file, site.function)
            self._set(there, owner, self._part(site), keywords, last_name(site.function))

    def _where_defined(self, files: FileRewrites, site: PlannedSite, defined: Location) -> None:
        """Set a class of the user's that a library calls with arrays, as `Sequential` does."""
        file = files.at(defined.file, defined.line)
        if module_library(files, file, site.function) != self.library:
            raise UnwritableError(
                file.where(defined.line), f"{site.function} is no module of {self.library}"
            )
        there, owner = _class(files, file, site.function)
        self._set(there, owner, self._part(site), "", last_name(site.function))

    def _part(self, site: PlannedSite) -> PlannedPart:
        """Return the treatment of all calls: where they differ, that of those checkpointed."""
        parts = merged(site.parts)
        if len(parts) > 1:
            one = min((p for p in parts if p.checkpointed), key=lambda p: p.policy is not None)
            self.unsaid.append(
                f"{site.function} is set for all of its {site.calls} calls, of which the plan"
                f" treats {site.calls - one.calls} otherwise"
            )
            return one
        return parts[0]

    def _keywords(
        self,
        files: FileRewrites,
        file: FileRewrite,
        location: Location,
        site: PlannedSite,
        calls: ObservedCalls,
    ) -> str | None:
        """Return the keyword for arguments that are no arrays: `, static_argnums=(2,)`.

        None where one of them is passed by name, which only a checkpoint at the call can do.
        """
        if self.library == "equinox":  # finds out itself
            return ""
        seen = calls.seen.get((files.path(location.file), location.line, site.function))
        found = calls_of(file.facts, calls_at(file, location), site.function)
        if len(found) != 1:
            raise UnwritableError(
                file.where(location.line),
                f"cannot tell from the line which call of {site.function} is meant",
            )
        # A class is given the module itself, argument 0, as well.
        implicit = 0 if is_through_class(file.facts, found[0].func) else 1
        positions, named = static_arguments(file.facts, found[0], None, implicit, seen)
        if named:
            return None
        numbers = [str(n + implicit) for n in positions]
        listed = ", ".join(numbers) + "," * (len(numbers) == 1)
        return f", static_argnums=({listed})" if numbers else ""

    def _scan(self, file: FileRewrite, location: Location) -> ast.expr | None:
        """Return the call or decorator that makes the framework's scan at a location."""
        reached = set(calls_reached(file, calls_at(file, location)))
        loops = [
            loop.node
            for loop in file.facts.loops
            if loop.qualname == _SCANS.get(self.library) and loop.node in reached
        ]
        return loops[0] if len(loops) == 1 else None

    def _set(
        self,
        file: FileRewrite,
        definition: ast.stmt,
        part: PlannedPart,
        keywords: str,
        method: str = "__call__",
    ) -> None:
        """Give a class, one of its methods or a function the checkpoint."""
        policy = file.policy(part.policy, definition)
        given = f"{keywords}, policy={policy}" if policy else keywords
        remat = _REMATS[self.library]
        if self.library == "linen" and method != "__call__":
            given += f", methods=[{file.string(method)}]"
        known = self.written.setdefault(definition, given)
        if known != given:
            raise UnwritableError(
                file.where(definition.lineno),
                "the plan differs between the places where this is called, and its setting cannot;"
                " plan --diff writes it at each place",
            )
        name = file.spelling(remat, remat.rpartition(".")[0], definition)
        if self.library == "linen" and isinstance(definition, ast.ClassDef):
            _append(file, definition, f"{definition.name} = {name}({definition.name}{given})")
            return
        function = definition
        if isinstance(definition, ast.ClassDef):
            found = file.facts.names.method(definition, method)
            if found is None:
                raise UnwritableError(
                    file.where(definition.lineno),
                    f"{definition.name} does not define {method} itself; checkpoint it by hand",
                )
            function = found
        arguments = given.removeprefix(", ")
        _decorate(file, function, f"@{name}({arguments})" if arguments else f"@{name}")


def _class(files: FileRewrites, file: FileRewrite, function: str) -> tuple[FileRewrite, ast.stmt]:
    """Return the definition of the class that a method belongs to, with its file."""
    owner = function.rpartition(".")[0].rpartition(".")[2]
    here = [cls for cls in file.facts.names.classes if cls.name == owner]
    if len(here) == 1:
        return file, here[0]
    found = loaded_classes(files, file, owner) if not here else []
    if len(found) == 1:
        path = str(getattr(sys.modules[found[0].__module__], "__file__", ""))
        there = files.at(path, 1)
        named = [cls for cls in there.facts.names.classes if cls.name == owner]
        if len(named) == 1:
            return there, named[0]
    raise UnwritableError(
        file.display_path, f"cannot tell which class {owner} is meant; checkpoint it by hand"
    )


def _body(
    files: FileRewrites, file: FileRewrite, loop: ast.expr, function: str, location: Location
) -> tuple[FileRewrite, ast.stmt]:
    """Return the definition of what a scan runs, a class or a function, with its file."""
    (found,) = (each for each in file.facts.loops if each.node is loop)
    bodies: tuple[ast.AST, ...] = found.bodies or tuple(
        f for f in file.facts.names.functions if loop in getattr(f, "decorator_list", ())
    )
    definitions = {
        id(node): (there, node)
        for body in bodies
        for there, node in _definitions(files, file, body)
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    if len(definitions) == 1:
        return next(iter(definitions.values()))
    raise UnwritableError(
        file.where(location.line),
        f"cannot tell what this loop runs ({function}); checkpoint it by hand",
    )


def _definitions(
    files: FileRewrites, file: FileRewrite, node: ast.AST, depth: int = 0
) -> Iterator[tuple[FileRewrite, ast.AST]]:
    """Yield what an expression may be, through checkpoints around it."""
    if not isinstance(node, ast.expr):
        yield file, node
        return
    for origin in file.facts.names.origins(node) if depth < _DEPTH else ():
        site = file.facts.site_of(origin) if isinstance(origin, ast.AST) else None
        if site is not None and site.target is not None:
            yield from _definitions(files, file, site.target, depth + 1)
        elif isinstance(origin, External):
            other = definition_of(files, origin.qualname)
            if other is not None:
                yield other
        elif isinstance(origin, ast.AST):
            yield file, origin


def _append(file: FileRewrite, definition: ast.ClassDef, text: str) -> None:
    """Write a statement below a class."""
    source = file.source
    row = definition.end_lineno or definition.lineno
    end = len(source.lines[row - 1].rstrip("\r\n"))
    indent = file.indent(definition.lineno)
    lines = file.newline * (2 if indent else 3)
    file.edit(Edit(Span(row, end, row, end), f"{lines}{indent}{text}"))


def _decorate(file: FileRewrite, function: ast.stmt, text: str) -> None:
    """Write a decorator right above a function."""
    row = function.lineno
    file.edit(Edit(Span(row, 0, row, 0), f"{file.indent(row)}{text}{file.newline}"))
