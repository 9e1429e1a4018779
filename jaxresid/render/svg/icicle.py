"""What is kept for the backward pass by module, function, line and value, as an icicle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from jaxresid.base.text.layer_paths import pattern, scope_key
from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.rows import ResidualRow, shapes_text
from jaxresid.render.style.words import percent, place_text, short_path
from jaxresid.render.svg.canvas import WIDTH, cut, document, element, hint, written
from jaxresid.results import Computed, Report, Residual

_TOP, _HEIGHT = 92, 400
_EDGE = 24
_LEAST = 3.0  # pixels: smaller ones are one
_TALL, _TWO_LINES = 14.0, 30.0
_MODULES = 3  # as many levels of modules have a column
# Of modules in a module path: NNX and Equinox have dots.
_SEPARATOR = re.compile("[/.]")
# Columns after those of modules, by how much room they need.
_WEIGHTS = {"module": 0.8, "function": 0.9, "line": 1.4, "value": 1.0}
_HEADS = {"module": "module", "function": "function", "line": "line", "value": "values"}


@dataclass(frozen=True, slots=True)
class Node:
    """Residuals with something in common.

    Attributes:
      kind: `module`, `function`, `line`, `value` or `rest`.
      label: what they have in common.
      note: what else there is to say of it: the code of a line.
      nbytes: their bytes.
      children: these in parts, the biggest first; what a part has no name for is not among them.
    """

    kind: str
    label: str
    note: str
    nbytes: int
    children: tuple[Node, ...] = ()


def tree(report: Report) -> tuple[Node, ...]:
    """Return the computed residuals of a report by module, function, line and value."""
    found = tuple(r for r in report.residuals if isinstance(r.origin, Computed) and r.nbytes)
    return _modules([(_scope(r), r) for r in found])


def icicle(report: Report) -> str:
    """Return what a report keeps for the backward pass by module, line and value, as SVG.

    Raises:
      ValueError: nothing is kept; the message is for the user.
    """
    report = safe_value(replace(report, lifetimes=()))
    nodes = tree(report)
    total = sum(node.nbytes for node in nodes)
    if not report.target.has_gradient:
        raise ValueError(
            f"no icicle: {report.target.name} takes no gradient, so nothing is kept for a backward"
            " pass; the timeline has what is live"
        )
    if not total:
        raise ValueError("no icicle: nothing is kept for the backward pass")
    depth = min(max(map(_depth, nodes)), _MODULES)
    kinds = (*["module"] * depth, "function", "line", "value")
    weights = [_WEIGHTS[kind] for kind in kinds]
    unit = (WIDTH - 2 * _EDGE) / sum(weights)
    edges = [_EDGE + unit * sum(weights[:i]) for i in range(len(kinds) + 1)]
    title = f"{report.target.name}: kept for the backward pass"
    host = report.totals.host_nbytes
    said = f"{format_bytes(total)}, by what makes it"
    if host:
        said += f"; {format_bytes(host)} of it in host memory"
    biggest = [f"{node.label} {format_bytes(node.nbytes)}" for node in nodes[:5]]
    shown = dict(zip(reversed(kinds), reversed(edges[:-1]), strict=True))
    cells = _Cells(tuple(edges), depth, total)
    return document(
        _TOP + _HEIGHT + 24,
        title,
        f"{said}. The biggest: {', '.join(biggest)}.",
        written(_EDGE, 32, title, kind="title", room=WIDTH * 0.7),
        written(_EDGE, 54, said),
        *(written(x, _TOP - 8, _HEADS[kind], kind="muted") for kind, x in shown.items()),
        *cells.drawn(nodes, 0, float(_TOP)),
    )


@dataclass(frozen=True, slots=True)
class _Cells:
    """Where cells are.

    Attributes:
      edges: the left edges of the columns, and the right edge of the last.
      modules: how many columns are those of modules.
      total: the bytes of all.
    """

    edges: tuple[float, ...]
    modules: int
    total: int

    def drawn(self, nodes: Sequence[Node], column: int, top: float) -> Iterator[str]:
        """Yield cells from a place downwards, each with what is in it at its right."""
        small = [node for node in nodes if self._height(node.nbytes) < _LEAST]
        if len(small) > 1:
            nbytes = sum(node.nbytes for node in small)
            rest = Node("rest", f"{len(small)} smaller", "", nbytes)
            nodes = [*(node for node in nodes if node not in small), rest]
        for node in nodes:
            left = self._column(node, column)
            right = self._right(node, left)
            yield from self._cell(node, self.edges[left], self.edges[right], top)
            yield from self.drawn(node.children, right, top)
            top += self._height(node.nbytes)

    def _column(self, node: Node, column: int) -> int:
        first = {"function": self.modules, "line": self.modules + 1, "value": self.modules + 2}
        return first.get(node.kind, column)

    def _right(self, node: Node, left: int) -> int:
        """Return the column that a cell ends at: that of what is in it."""
        if not node.children:
            return len(self.edges) - 1
        if any(child.kind == "module" for child in node.children) and left + 1 < self.modules:
            return left + 1
        return max(left + 1, self.modules)

    def _height(self, nbytes: int) -> float:
        return _HEIGHT * nbytes / self.total

    def _cell(self, node: Node, left: float, right: float, top: float) -> Iterator[str]:
        height = self._height(node.nbytes)
        size = f"{format_bytes(node.nbytes)}, {percent(node.nbytes, self.total)}"
        words = " · ".join(part for part in (node.label, size, node.note) if part)
        yield element(
            "rect",
            hint(words),
            class_=f"cell {node.kind}",
            **{"x": left, "y": top, "width": right - left, "height": height},
        )
        room = right - left - 10
        if height >= _TWO_LINES:
            x = left + 6
            yield written(x, top + 15, node.label, kind="small bold", room=room, keeps_end=True)
            note = f"{size} · {node.note}" if node.note else size
            yield written(x, top + 28, note, kind="small", room=room)
        elif height >= _TALL:
            room -= 7 * len(size) + 14
            label = cut(node.label, room, keeps_end=True)
            words = f"{label} · {size}" if label else size
            yield written(left + 6, top + height / 2 + 4, words, kind="small")


def _depth(node: Node) -> int:
    """Return how many modules are inside each other."""
    return node.kind == "module" and 1 + max(map(_depth, node.children), default=0)


def _modules(found: Sequence[tuple[tuple[str, ...], Residual]], level: int = 0) -> tuple[Node, ...]:
    """Return nodes for modules, and for functions of what is in none (any more)."""
    groups: dict[str, list[tuple[tuple[str, ...], Residual]]] = {}
    for scope, residual in found:
        if scope and level < _MODULES:
            groups.setdefault(scope_key(scope[0]), []).append((scope, residual))
    nodes = []
    for members in groups.values():
        names = {scope[0] for scope, _ in members}
        label = names.pop() if len(names) == 1 else max(map(pattern, names), key=len)
        inside = _modules([(scope[1:], r) for scope, r in members], level + 1)
        if len(inside) == 1 and inside[0].kind == "module":  # a chain is one cell
            only = inside[0]
            nodes.append(Node("module", f"{label}/{only.label}", "", only.nbytes, only.children))
        else:
            nodes.append(Node("module", label, "", sum(n.nbytes for n in inside), inside))
    rest = [r for scope, r in found if not scope or level >= _MODULES]
    return _sorted([*nodes, *_split(rest, _LEVELS)])


def _split(residuals: Sequence[Residual], levels: Sequence[_Level]) -> tuple[Node, ...]:
    """Return nodes for residuals by the first of some levels, and in these by the others."""
    if not levels:
        return ()
    level, *others = levels
    groups: dict[str, list[Residual]] = {}
    for residual in residuals:
        groups.setdefault(level.label(residual), []).append(residual)
    return _sorted(
        [
            Node(
                level.kind,
                label,
                level.note(members),
                sum(r.nbytes for r in members),
                _split(members, others),
            )
            for label, members in groups.items()
        ]
    )


def _sorted(nodes: Sequence[Node]) -> tuple[Node, ...]:
    return tuple(sorted(nodes, key=lambda node: -node.nbytes))


@dataclass(frozen=True, slots=True)
class _Level:
    """One column: its kind, and what residuals in it have in common.

    Attributes:
      kind: as in `Node`.
      label: what it calls that of a residual.
      note: what it says of residuals with the same label.
    """

    kind: str
    label: Callable[[Residual], str]
    note: Callable[[Sequence[Residual]], str]


def _origin(residual: Residual) -> Computed:
    assert isinstance(residual.origin, Computed)
    return residual.origin


def _scope(residual: Residual) -> tuple[str, ...]:
    return tuple(part for part in _SEPARATOR.split(_origin(residual).scope) if part)


def _function(residual: Residual) -> str:
    where = _origin(residual).location
    if where is None:
        return "no line known"
    return place_text(where) if where.is_of_loss else where.function


def _file(residuals: Sequence[Residual]) -> str:
    where = _origin(residuals[0]).location
    return short_path(where.file) if where else ""


def _line(residual: Residual) -> str:
    where = _origin(residual).location
    return place_text(where) if where else "no line known"


def _code(residuals: Sequence[Residual]) -> str:
    where = _origin(residuals[0]).location
    return where.code if where else ""


def _value(residual: Residual) -> str:
    origin = _origin(residual)
    return f"{origin.name!r} {origin.primitive}" if origin.name else origin.primitive


def _shapes(residuals: Sequence[Residual]) -> str:
    return shapes_text(ResidualRow(tuple(residuals)), at_most=2)


_LEVELS = (
    _Level("function", _function, _file),
    _Level("line", _line, _code),
    _Level("value", _value, _shapes),
)
