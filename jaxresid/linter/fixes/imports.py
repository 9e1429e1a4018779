"""Find how a module spells something of another module, and add the import that it lacks for it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.base.violations import Edit, Span

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts
    from jaxresid.linter.resolve.names import Binding, Scope

_Import = ast.Import | ast.ImportFrom
# The order that isort and ruff keep: future, standard library, everything else.
_FUTURE, _STANDARD, _OTHER = range(3)


class _InsertionPoint(NamedTuple):
    """The row to insert an import at, and whether an empty line belongs around it."""

    row: int
    space_before: bool = False
    space_after: bool = False


@dataclass
class Imports:
    """The names by which one module refers to other modules, and the imports it lacks.

    Asking for a name that is missing adds its import.

    Attributes:
      facts: the facts of the module.
      missing: the imports to add: the dotted name of what is imported -> the name that it binds.
    """

    facts: Facts
    missing: dict[str, str] = field(default_factory=dict)

    def spelling(
        self, qualname: str, imported: str, at: ast.AST, also: Sequence[str] = ()
    ) -> str | None:
        """Return how to write `qualname` at a place, None where other names take every way to.

        Args:
          qualname: the dotted name of what is wanted.
          imported: what is imported where the module has no name for it, a part of `qualname`:
            `jax` for `import jax`, `flax.nnx` for `from flax import nnx`.
          at: the node where the name is to be written.
          also: other qualified names of the same thing.
        """
        known = self._existing_name((qualname, *also), at)
        if known is not None:
            return known
        module, _, last = imported.rpartition(".")
        for bound in (last, f"{module.partition('.')[0]}_{last}") if module else (last,):
            if self.missing.get(imported, bound) == bound and self._is_free(bound, imported, at):
                self.missing[imported] = bound
                return bound + qualname[len(imported) :]
        return None

    def edits(self) -> Iterator[Edit]:
        """Yield the edits that add the missing imports, each where the module's order puts it."""
        newline = "\r\n" if "\r\n" in self.facts.source.text else "\n"
        by_place: dict[_InsertionPoint, str] = {}
        for imported in sorted(self.missing, key=_order):
            statement = _statement(imported, self.missing[imported]) + newline
            place = self._insertion_point(imported)
            by_place[place] = by_place.get(place, "") + statement
        lines, text = self.facts.source.lines, self.facts.source.text
        for place, statements in by_place.items():
            is_past = place.row > len(lines) and text and not text.endswith("\n")
            lead = newline * (bool(is_past) + place.space_before)
            tail = newline * place.space_after
            yield Edit(Span(place.row, 0, place.row, 0), lead + statements + tail)

    # -- names there are -----------------------------------------------------------------------

    def _existing_name(self, qualnames: Sequence[str], at: ast.AST) -> str | None:
        """Return the module's name for one of these, or else for the module that has it."""
        own = [(q, "") for q in qualnames]
        own += [(module, f".{last}") for module, _, last in (q.rpartition(".") for q in qualnames)]
        for wanted, tail in own:
            for name, bindings in self.facts.names.root.bindings.items():
                if all(self._binds(b, wanted, at) for b in bindings) and self._is_visible(
                    name, wanted, at
                ):
                    return name + tail
        return None

    def _binds(self, binding: Binding, qualname: str, at: ast.AST) -> bool:
        """Return whether a binding of the module certainly gives its name that meaning."""
        names = self.facts.names
        parent = names.parents.get(binding.node)
        if binding.kind == "import":
            return binding.qualname == qualname and isinstance(parent, (ast.Module, ast.Try))
        if binding.kind == "assign" and isinstance(parent, ast.Module):
            is_earlier = names.function(at) is not None or binding.order < names.order[at]
            found = names.origins(binding.value)
            return is_earlier and [getattr(o, "qualname", None) for o in found] == [qualname]
        return False

    def _is_visible(self, name: str, qualname: str, at: ast.AST) -> bool:
        """Return whether a name has its module-level meaning at a place.

        It does unless a function, class or comprehension around the place gives it another meaning.
        """
        return all(
            all(b.kind == "import" and b.qualname == qualname for b in scope.bindings[name])
            for scope in self._scopes(at)
            if name in scope.bindings
        )

    def _is_free(self, name: str, qualname: str, at: ast.AST) -> bool:
        is_taken = any(
            b.kind != "import" or b.qualname != qualname
            for b in self.facts.names.root.bindings.get(name, ())
        )
        return not is_taken and self._is_visible(name, qualname, at)

    def _scopes(self, at: ast.AST) -> Iterator[Scope]:
        """Yield the scopes around a place except the module's, innermost first."""
        names = self.facts.names
        scope = next((s for n in ast.walk(at) if (s := names.scopes.get(n))), None)
        while scope is not None and scope is not names.root:
            yield scope
            scope = scope.parent

    # -- where imports go ----------------------------------------------------------------------

    def _insertion_point(self, imported: str) -> _InsertionPoint:
        groups = self._groups()
        kind, root = _kind(imported), imported.partition(".")[0]
        alike = [g for g in groups if any(_kind(_module(i)) == kind for i in g)]
        same = [g for g in alike if any(_module(i).partition(".")[0] == root for i in g)]
        if alike:
            group = (same or alike)[0]
            before = [i for i in group if _order_of(i) <= _order(imported)]
            return _InsertionPoint(_end(before[-1]) + 1 if before else group[0].lineno)
        later = [g for g in groups if _kind(_module(g[0])) > kind]
        if later:
            return _InsertionPoint(later[0][0].lineno, space_after=True)
        if groups:
            return _InsertionPoint(_end(groups[-1][-1]) + 1, space_before=True)
        return self._first_insertion_point()

    def _groups(self) -> list[list[_Import]]:
        """Return the imports at the top of the module, grouped where their lines are adjacent."""
        groups: list[list[_Import]] = []
        for node in self.facts.names.tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                if groups and node.lineno <= _end(groups[-1][-1]) + 1:
                    groups[-1].append(node)
                else:
                    groups.append([node])
            elif not _is_docstring(node, self.facts.names.tree):
                break
        return groups

    def _first_insertion_point(self) -> _InsertionPoint:
        """Return the place of the first import.

        It is after the docstring, or without one after the comments that begin the file, among them
        its interpreter and its encoding.
        """
        tree, lines = self.facts.names.tree, self.facts.source.lines
        if tree.body and _is_docstring(tree.body[0], tree):
            return _InsertionPoint(
                (tree.body[0].end_lineno or tree.body[0].lineno) + 1, space_before=True
            )
        row = 1 + next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
        is_code = row <= len(lines) and bool(lines[row - 1].strip())
        return _InsertionPoint(row, space_after=is_code)


def _statement(imported: str, bound: str) -> str:
    module, _, last = imported.rpartition(".")
    if not module:
        return f"import {imported}"
    return f"from {module} import {last}" + (f" as {bound}" if bound != last else "")


def _is_docstring(node: ast.stmt, tree: ast.Module) -> bool:
    return (
        node is tree.body[0]
        and isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _module(node: _Import) -> str:
    if isinstance(node, ast.Import):
        return node.names[0].name
    return "." * node.level + (node.module or "")


def _kind(module: str) -> int:
    root = module.partition(".")[0]
    if root == "__future__":
        return _FUTURE
    return _STANDARD if root in sys.stdlib_module_names else _OTHER


def _order(imported: str) -> tuple[int, bool, str]:
    module = imported.rpartition(".")[0]
    return _kind(imported), bool(module), (module or imported).lower()


def _order_of(node: _Import) -> tuple[int, bool, str]:
    module = _module(node)
    return _kind(module), isinstance(node, ast.ImportFrom), module.lower()


def _end(node: _Import) -> int:
    return node.end_lineno or node.lineno
