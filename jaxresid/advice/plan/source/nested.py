"""Write a loop in segments: an outer scan of checkpoints around inner scans of its iterations.

The statement of the loop becomes several. So this comes after all other edits of a file, on the
text that they leave.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxresid.advice.plan.source.file_edits import FileRewrite, FileRewrites, UnwritableError
from jaxresid.advice.plan.source.locate import calls_at
from jaxresid.advice.plan.source.nested_fori import QUALNAME, as_scan
from jaxresid.advice.plan.source.new_names import names_used, unused
from jaxresid.base.violations import Edit, Span
from jaxresid.inspector.variants.nesting import split
from jaxresid.linter.fixes import edits
from jaxresid.linter.resolve.sites import Loop
from jaxresid.results import Location

# The arguments of jax.lax.scan by position, and those that each level of segments is given too.
_SCAN = ("f", "init", "xs", "length", "reverse", "unroll")
# Longer lines are taken apart, columns without the indent.
_WIDE = 88
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)


@dataclass(frozen=True, slots=True)
class Segments:
    """How a loop is to be written.

    Attributes:
      length: how many iterations it has.
      sizes: how many a segment has, by level, the outermost first.
      policy: the policy of the segments' checkpoints.
    """

    length: int
    sizes: tuple[int, ...]
    policy: str | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        """How many segments each level has, and at last how many iterations."""
        return split(self.length, self.sizes)

    @property
    def covered(self) -> int:
        """How many iterations are in segments."""
        return self.length - self.length % self.sizes[0]


def scan_number(file: FileRewrite, location: Location, segments: Segments) -> int:
    """Return which of a file's calls of `jax.lax.scan` or `fori_loop` is at a location, by order.

    Raises:
      UnwritableError: None can be seen there, or several; it says what to write by hand.
    """
    calls = calls_at(file, location)
    found = [n for n, loop in enumerate(_scans(file)) if loop.node in calls]
    if len(found) == 1:
        return found[0]
    what = "cannot tell the loops on this line apart" if found else "no jax.lax.scan"
    around = {id(part) for call in calls for part in ast.walk(call)}
    others = [loop.qualname for loop in file.facts.loops if id(loop.node) in around]
    others += [name for call in calls for name in file.facts.names.qualnames(call.func)]
    by_hand = _by_hand(segments)
    for qualname in others:
        by_hand = cut_by_hand(qualname, segments) or by_hand
    raise UnwritableError(file.where(location.line), f"{what}; by hand: {by_hand}")


def cut_by_hand(qualname: str, segments: Segments) -> str | None:
    """Return what to write for a loop that is no `jax.lax.scan`, as far as it is known.

    Args:
      qualname: what makes the loop, or the library that does.
      segments: how it is cut.
    """
    size, count = segments.sizes[0], segments.counts[0]
    if qualname.endswith("fori_loop"):
        inner = f"jax.lax.fori_loop(0, {size}, lambda j, x: body({size} * i + j, x), x)"
        rest = segments.length - segments.covered
        more = f", and go on with the last {rest} iterations" if rest else ""
        return f"jax.lax.fori_loop(0, {count}, jax.checkpoint(lambda i, x: {inner}), init){more}"
    if qualname == "flax" or qualname.startswith("flax.linen"):
        lengths = ", ".join(map(str, segments.counts))
        return (
            f"flax.linen.remat_scan(Block, lengths=({lengths})), or flax.linen.scan with"
            f" length={count} of flax.linen.remat of a module that holds your flax.linen.scan with"
            f" length={size}; the parameters get one more axis"
        )
    if qualname.startswith("flax.nnx"):
        return (
            f"make the layers with two flax.nnx.vmap, of {count} and of {size}, or reshape their"
            f" state to ({count}, {size}, ...); then call flax.nnx.scan of flax.nnx.remat(segment)"
            " on them, where segment is a function of the carry and the layers that calls your"
            " flax.nnx.scan on these"
        )
    if qualname.startswith("equinox"):
        return (
            f"split the arrays of the stacked layers, with equinox.partition, reshape them to"
            f" ({count}, {size}, ...), and call jax.lax.scan on"
            " jax.checkpoint(lambda carry, xs: jax.lax.scan(body, carry, xs), prevent_cse=False);"
            f" or give equinox.internal.scan kind='checkpointed' and checkpoints={count}, which"
            " recomputes more"
        )
    return None


def _scans(file: FileRewrite) -> list[Loop]:
    found = [loop for loop in file.facts.loops if loop.qualname in ("jax.lax.scan", QUALNAME)]
    return sorted(found, key=lambda loop: (loop.node.lineno, loop.node.col_offset))


def cut_scans(
    files: FileRewrites,
    file: FileRewrite,
    content: bytes,
    loops: Sequence[tuple[int, Segments]],
) -> bytes:
    """Return the content of a file with some of its loops in segments.

    Args:
      files: The user's files.
      file: The file.
      content: What it holds so far; it has the scans that it had.
      loops: The number of each loop, see `scan_number`, and how it is cut.

    Raises:
      UnwritableError: One is no statement of its own that can be seen to be a plain call.
    """
    for number, segments in sorted(loops, key=lambda each: -each[0]):
        now = files.again(file, content)
        if _scans(now)[number].qualname == QUALNAME:
            _check_place(now, _scans(now)[number], segments)
            as_scan(now, _scans(now)[number], segments.length)
            now = files.again(file, now.new())
        _cut_scan(now, _scans(now)[number], segments)
        content = now.new()
    return content


def _cut_scan(file: FileRewrite, loop: Loop, segments: Segments) -> None:
    call = loop.node
    assert isinstance(call, ast.Call)
    given = _arguments(file, loop)
    statement = _check_place(file, loop, segments)
    _Writer(file, call, statement, given, segments).write()


def _check_place(file: FileRewrite, loop: Loop, segments: Segments) -> ast.stmt:
    """Return the statement of a loop, which others can be put before."""
    call = loop.node
    assert isinstance(call, ast.Call)
    statement = file.facts.names.statement(call)
    if not _can_precede(file, statement, call):
        raise UnwritableError(
            file.where(call.lineno),
            "this loop is inside an expression that no statement can be put before; by hand:"
            f" {cut_by_hand(loop.qualname, segments) or _by_hand(segments)}",
        )
    return statement


def _by_hand(segments: Segments) -> str:
    size, count = segments.sizes[0], segments.counts[0]
    return (
        "give jax.lax.scan the body jax.checkpoint(lambda carry, xs: jax.lax.scan(body, carry, xs),"
        f" prevent_cse=False) and the inputs reshaped to ({count}, {size}, ...)"
    )


def _arguments(file: FileRewrite, loop: Loop) -> dict[str, ast.expr]:
    call = loop.node
    assert isinstance(call, ast.Call)
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        raise UnwritableError(
            file.where(call.lineno), "not all arguments of this loop are visible; cut it by hand"
        )
    given = dict(zip(_SCAN, call.args, strict=False))
    given |= {k.arg: k.value for k in call.keywords if k.arg}
    if not {"f", "init"} <= given.keys():
        raise UnwritableError(
            file.where(call.lineno), "not all arguments of this loop are visible; cut it by hand"
        )
    return given


def _can_precede(file: FileRewrite, statement: ast.stmt, call: ast.Call) -> bool:
    """Return whether what comes before a statement runs before a call in it, and as often."""
    if not isinstance(statement, _SIMPLE):
        return False
    line = file.source.lines[statement.lineno - 1]
    if line[: file.source.span(statement).column].strip():
        return False  # another statement is before it, or its block's head
    last = file.source.lines[(statement.end_lineno or statement.lineno) - 1]
    if last[file.source.span(statement).end_column :].lstrip().startswith(";"):
        return False
    between = (
        ast.Lambda,
        ast.ListComp,
        ast.SetComp,
        ast.DictComp,
        ast.GeneratorExp,
        ast.IfExp,
        ast.BoolOp,
    )
    for outer in file.facts.names.ancestors(call):
        if outer is statement:
            return True
        if isinstance(outer, between):
            return False
    return False


class _Writer:
    """Writes one loop."""

    def __init__(
        self,
        file: FileRewrite,
        call: ast.Call,
        statement: ast.stmt,
        given: dict[str, ast.expr],
        segments: Segments,
    ) -> None:
        self._file, self._call, self._statement = file, call, statement
        self._given, self._segments = given, segments
        self._used = names_used(file, call)
        self._scan = file.text(call.func)
        self._tree = self._spelled("jax.tree", "jax") + ".map"
        self._lines: list[str] = []

    def write(self) -> None:
        """Add the edits."""
        file, segments = self._file, self._segments
        init = file.text(self._given["init"])
        xs = self._xs()
        body = self._body(is_twice=segments.covered < segments.length)
        names = self._results()
        needs_ys = self._needs_ys()
        is_cut = segments.covered < segments.length
        is_reverse = "reverse" in self._given
        if is_reverse and is_cut:
            self._constant_reverse()
        outer = self._checkpointed(self._functions(body))
        inputs = self._reshaped(xs)
        keywords = self._keywords(segments.counts[0], xs)
        if len(f"carry, ys = {self._scan}({outer}, {init}, {inputs}{keywords})") > _WIDE:
            inputs = self._as_variable("cut", inputs)
            if len(f"carry, ys = {self._scan}({outer}, {init}, {inputs}{keywords})") > _WIDE:
                outer = self._as_variable("checkpointed", outer)
        run = f"{self._scan}({outer}, {init}, {inputs}{keywords})"
        if not needs_ys and not is_cut:
            self._replace_call(run)
            return
        carry, ys = names or (self._new("carry"), self._new("ys"))
        if names and set(names) & _names_in(self._given.values()) - {carry}:
            names, carry, ys = None, self._new("carry"), self._new("ys")
        if names and is_cut and xs is not None and carry in _names_in([self._given["xs"]]):
            names, carry, ys = None, self._new("carry"), self._new("ys")
        left = ys if needs_ys else "_"
        self._lines.append(f"{carry}, {left} = {run}")
        if is_cut:
            rest = self._new("rest") if needs_ys else "_"
            left_over = self._tail(xs)
            keywords = self._inner(xs, rest=True)
            again = f"{self._scan}({body}, {carry}, {left_over}{keywords})"
            if len(f"{carry}, {rest} = {again}") > _WIDE:
                left_over = self._as_variable("left_over", left_over)
                again = f"{self._scan}({body}, {carry}, {left_over}{keywords})"
            self._lines.append(f"{carry}, {rest} = {again}")
        if needs_ys:
            self._lines.append(f"{ys} = {self._joined(ys, rest if is_cut else None)}")
        if names:
            self._replace_statement()
        else:
            self._replace_call(f"({carry}, {ys if needs_ys else None})")

    # -- the parts of it ---------------------------------------------------------------------

    def _xs(self) -> str | None:
        node = self._given.get("xs")
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return None
        text = self._file.text(node)
        if self._segments.covered < self._segments.length and not isinstance(node, ast.Name):
            name = self._new("inputs")
            self._lines.append(f"{name} = {text}")
            return name
        return text

    def _body(self, *, is_twice: bool) -> str:
        node = self._given["f"]
        text = self._file.text(node)
        if is_twice and not isinstance(node, (ast.Name, ast.Attribute)):
            name = self._new("body")
            self._lines.append(f"{name} = {text}")
            return name
        return text

    def _functions(self, body: str) -> str:
        """Define a function for each level of segments; return the outermost one's name."""
        xs_name = "_" if self._is_without_xs() else "xs"
        inner = body
        for level in range(len(self._segments.sizes), 0, -1):
            is_innermost = level == len(self._segments.sizes)
            name = self._new("segment" if is_innermost else "segments")
            scanned = inner if is_innermost else self._checkpointed(inner)
            xs = "None" if self._is_without_xs() else "xs"
            more = (
                self._inner(None if xs == "None" else xs)
                if is_innermost
                else self._keywords(self._segments.counts[level], None if xs == "None" else xs)
            )
            if "\n" in scanned:
                scanned = " ".join(scanned.split())
            self._lines += [
                "",
                f"def {name}(carry, {xs_name}):",
                f"    return {self._scan}({scanned}, carry, {xs}{more})",
                "",
            ]
            inner = name
        return inner

    def _checkpointed(self, function: str) -> str:
        checkpoint = self._spelled("jax.checkpoint", "jax", ("jax.remat",))
        policy = self._file.policy(self._segments.policy, self._call)
        more = "" if policy is None else f", policy={policy}"
        return f"{checkpoint}({function}, prevent_cse=False{more})"

    def _is_without_xs(self) -> bool:
        node = self._given.get("xs")
        return node is None or (isinstance(node, ast.Constant) and node.value is None)

    def _keywords(self, length: int, xs: str | None) -> str:
        """Return the keywords of an outer scan of so many iterations."""
        found = f", length={length}" if xs is None or "length" in self._given else ""
        if "reverse" in self._given:
            found += f", reverse={self._file.text(self._given['reverse'])}"
        return found

    def _inner(self, xs: str | None, *, rest: bool = False) -> str:
        """Return the keywords of a scan of the iterations themselves."""
        length = self._segments.sizes[-1]
        if rest:
            length = self._segments.length - self._segments.covered
        found = self._keywords(length, xs)
        known = {"f", "init", "xs", "length", "reverse"}
        for name, node in self._given.items():
            if name not in known:
                found += f", {name}={self._file.text(node)}"
        return found

    def _reshaped(self, xs: str | None) -> str:
        if xs is None:
            return "None"
        segments = self._segments
        shape = ", ".join(map(str, segments.counts))
        part = ""
        if segments.covered < segments.length:
            rest = segments.length - segments.covered
            part = f"[{rest}:]" if self._is_reverse() else f"[:{segments.covered}]"
        return f"{self._tree}(lambda a: a{part}.reshape({shape}, *a.shape[1:]), {xs})"

    def _tail(self, xs: str | None) -> str:
        if xs is None:
            return "None"
        rest = self._segments.length - self._segments.covered
        part = f"[:{rest}]" if self._is_reverse() else f"[{self._segments.covered}:]"
        return f"{self._tree}(lambda a: a{part}, {xs})"

    def _joined(self, ys: str, rest: str | None) -> str:
        segments = self._segments
        depth = len(segments.counts)
        whole = f"a.reshape({segments.covered}, *a.shape[{depth}:])"
        if rest is None:
            return f"{self._tree}(lambda a: {whole}, {ys})"
        concatenate = self._spelled("jax.numpy.concatenate", "jax.numpy")
        both = f"[b, {whole}]" if self._is_reverse() else f"[{whole}, b]"
        return f"{self._tree}(lambda a, b: {concatenate}({both}), {ys}, {rest})"

    def _is_reverse(self) -> bool:
        node = self._given.get("reverse")
        return isinstance(node, ast.Constant) and node.value is True

    def _constant_reverse(self) -> None:
        if not isinstance(self._given["reverse"], ast.Constant):
            raise UnwritableError(
                self._file.where(self._call.lineno),
                "cannot tell in which direction this loop runs; by hand:"
                f" {_by_hand(self._segments)}",
            )

    # -- what becomes of the results ---------------------------------------------------------

    def _results(self) -> tuple[str, str] | None:
        """Return the two names that the statement does nothing but give to the results."""
        match self._statement:
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=carry), ast.Name(id=ys)])], value=value
            ) if value is self._call and carry != ys:
                return carry, ys
        return None

    def _needs_ys(self) -> bool:
        """Return whether anyone may look at what the iterations put out, one below the other."""
        names = self._results()
        if names is not None:
            around = self._file.facts.names.function(self._call)
            loads = [
                n
                for n in ast.walk(around or self._file.facts.names.tree)
                if isinstance(n, ast.Name) and n.id == names[1] and isinstance(n.ctx, ast.Load)
            ]
            if not loads and around is not None:
                return False
        parent = next(iter(self._file.facts.names.ancestors(self._call)), None)
        match parent:
            case ast.Subscript(value=value, slice=ast.Constant(value=0)) if value is self._call:
                return False
        return not self._puts_nothing_out()

    def _puts_nothing_out(self) -> bool:
        """Return whether the body is seen to return None beside the carry."""
        origin = self._file.facts.names.single_origin(self._given["f"])
        match origin:
            case ast.FunctionDef():
                returned = [
                    n.value
                    for n in ast.walk(origin)
                    if isinstance(n, ast.Return) and self._function_of(n) is origin
                ]
            case ast.Lambda(body=found):
                returned = [found]
            case _:
                return False
        return bool(returned) and all(
            isinstance(r, ast.Tuple)
            and len(r.elts) == 2
            and isinstance(r.elts[1], ast.Constant)
            and r.elts[1].value is None
            for r in returned
        )

    def _function_of(self, node: ast.AST) -> ast.AST | None:
        return self._file.facts.names.function(node)

    # -- text --------------------------------------------------------------------------------

    def _as_variable(self, name: str, text: str) -> str:
        """Return a new variable for what an expression gives; a name or None stays as it is."""
        if text.isidentifier():
            return text
        name = self._new(name)
        self._lines.append(f"{name} = {text}")
        return name

    def _new(self, name: str) -> str:
        return unused(name, self._used)

    def _spelled(self, qualname: str, imported: str, also: Sequence[str] = ()) -> str:
        return self._file.spelling(qualname, imported, self._call, also)

    def _replace_call(self, text: str) -> None:
        file = self._file
        file.edit(edits.replace(file.source, self._call, text))
        self._put_before()

    def _put_before(self) -> None:
        file, row = self._file, self._statement.lineno
        text = self._text()
        if text:
            file.edit(Edit(Span(row, 0, row, 0), text))

    def _replace_statement(self) -> None:
        file = self._file
        span = file.source.span(self._statement)
        start = file.source.start(span) - span.column
        end = file.source.end(span)
        text = self._text()
        file.edit(Edit(file.source.between(start, end), text.rstrip("\r\n")))

    def _text(self) -> str:
        source = self._file.source
        indent = self._file.indent(self._statement.lineno)
        lines = list(self._lines)
        before = self._statement.lineno > 1 and source.lines[self._statement.lineno - 2].strip()
        if lines and not lines[0] and not before:
            lines = lines[1:]
        made: list[str] = []
        for text in lines:
            if text or (made and made[-1]):
                made.append(indent + text if text else "")
        return "".join(f"{text}{self._file.newline}" for text in made)


def _names_in(nodes: Iterable[ast.expr]) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}
