"""Write a Python loop in groups: its body becomes a function of a group, called in a checkpoint.

The statement of the loop becomes several. So this comes after all other edits of a file, on the
text that they leave.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from jaxresid.advice.plan.source.file_edits import FileRewrite, FileRewrites, UnwritableError
from jaxresid.advice.plan.source.locate import module_library
from jaxresid.advice.plan.source.loop_variables import LoopVariables, loop_variables
from jaxresid.advice.plan.source.new_names import names_used, unused
from jaxresid.base.violations import Edit
from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.results import Location

# Longer lines are taken apart.
_WIDE = 88
# The checkpoint of each library, with the module that is imported for it.
_CHECKPOINTS = {
    "jax": ("jax.checkpoint", "jax"),
    "linen": ("flax.linen.remat", "flax.linen"),
    "nnx": ("flax.nnx.remat", "flax.nnx"),
    "equinox": ("equinox.filter_checkpoint", "equinox"),
    "haiku": ("haiku.remat", "haiku"),
}


@dataclass(frozen=True, slots=True)
class Groups:
    """How a loop is to be written.

    Attributes:
      length: how many iterations it has.
      size: how many a group has.
      policy: the policy of the groups' checkpoints.
    """

    length: int
    size: int
    policy: str | None = None

    @property
    def has_rest(self) -> bool:
        """Whether iterations are left over, which follow without a checkpoint."""
        return self.length % self.size > 0


def loop_number(file: FileRewrite, location: Location, groups: Groups) -> int:
    """Return which of a file's `for` statements is at a location, by their order.

    Raises:
      UnwritableError: None can be seen there; it says what to write by hand.
    """
    found = [
        n
        for n, loop in enumerate(_loops(file))
        if loop.lineno <= location.line <= (loop.iter.end_lineno or loop.lineno)
    ]
    if len(found) != 1:
        raise UnwritableError(
            file.where(location.line), f"no for statement; by hand: {_by_hand(groups)}"
        )
    return found[0]


def _loops(file: FileRewrite) -> list[ast.For]:
    found = [node for node in ast.walk(file.facts.names.tree) if isinstance(node, ast.For)]
    return sorted(found, key=lambda loop: (loop.lineno, loop.col_offset))


def _by_hand(groups: Groups, checkpoint: str = "jax.checkpoint") -> str:
    size, length = groups.size, groups.length
    policy = f", policy=jax.checkpoint_policies.{groups.policy}" if groups.policy else ""
    rest = length % size
    more = f", and go on with the last {rest} iterations" if rest else ""
    return (
        f"make what {size} iterations do, from number start on, a function run_group of start and"
        " of the arrays that one hands to the next, which returns these; call"
        f" {checkpoint}(run_group, static_argnums=0{policy})(start, x) for start in"
        f" range(0, {length - rest}, {size}){more}"
    )


def group_loops(
    files: FileRewrites,
    file: FileRewrite,
    content: bytes,
    loops: Sequence[tuple[int, Groups]],
) -> bytes:
    """Return the content of a file with some of its loops in groups.

    Args:
      files: The user's files.
      file: The file.
      content: What it holds so far; it has the `for` statements that it had.
      loops: The number of each loop, see `loop_number`, and how it is grouped.

    Raises:
      UnwritableError: The body of one cannot be made a function; it says what to write by hand.
    """
    for number, groups in sorted(loops, key=lambda each: -each[0]):
        now = files.again(file, content)
        _Writer(files, now, _loops(now)[number], groups).write()
        content = now.new()
    return content


@dataclass(frozen=True, slots=True)
class _Sliced:
    """What a loop goes through.

    Attributes:
      group: as an expression, of the group that begins at `start`.
      count: how many there are, as an expression.
      sequence: what is sliced, where it is one thing that is sliced whole.
    """

    group: str
    count: str
    sequence: str | None = None


class _Writer:
    """Writes one loop."""

    def __init__(
        self, files: FileRewrites, file: FileRewrite, loop: ast.For, groups: Groups
    ) -> None:
        self._file, self._loop, self._groups = file, loop, groups
        function = file.facts.names.function(loop)
        if function is None:
            raise self._unwritable("it is in no function")
        self._function: FunctionNode = function
        self._used = names_used(file, loop)
        self._library = self._library_of(files, function)
        self._qualname, self._imported = _CHECKPOINTS[self._library]
        line = file.source.lines[loop.lineno - 1]
        self._indent = line[: len(line) - len(line.lstrip())]

    def write(self) -> None:
        """Add the edit."""
        file, loop = self._file, self._loop
        source = file.source
        first, last = source.span(loop), source.span(loop.body[-1])
        if loop.body[0].lineno == loop.lineno:
            raise self._unwritable("its body is on the line of the loop")
        is_alone = not source.lines[last.end_row - 1][last.end_column :].lstrip().startswith(";")
        if source.lines[loop.lineno - 1][: first.column].strip() or not is_alone:
            raise self._unwritable("other code shares a line with it")
        found = loop_variables(loop, self._function)
        if isinstance(found, str):
            raise self._unwritable(found)
        self._start, self._run = self._new("start"), self._new("run_group")
        lines = self._lines(found)
        start = source.start(first) - first.column
        text = file.newline.join(self._indent + line if line else "" for line in lines)
        file.edit(Edit(source.between(start, self._end()), text))

    # -- the parts of it ---------------------------------------------------------------------

    def _lines(self, found: LoopVariables) -> list[str]:
        """Return the lines that stand for the loop, without its indent."""
        groups, start, run = self._groups, self._start, self._run
        before: list[str] = []
        sliced = self._sliced(self._loop.iter)
        if sliced is None:
            if self._library == "linen":
                raise self._unwritable("what it goes through cannot be sliced")
            items = self._new("items")
            before = [f"{items} = list({self._file.text(self._loop.iter)})"]
            sliced = self._of_sequence(items)
        own, given, group = [start], [start], sliced.group
        if self._library == "nnx" and sliced.sequence is not None:
            # Given all of the model, each group would have all of it as its state.
            group = self._new("layers")
            own, given = [group], [sliced.group]
        elif self._library in ("linen", "nnx"):
            own.insert(0, self._self_name())
            given.insert(0, self._self_name())
        step = 4 * " " if "\t" not in self._indent else "\t"
        results = ", ".join(found.results)
        head, *body = self._moved(group, step)
        if not self._follows_a_blank_line():
            before.insert(0, "")
        made = [
            *before,
            *([""] if before and before[-1] else []),
            f"def {run}({', '.join([*own, *found.carried])}):",
            f"{step}{head}",
            *(f"{step}{line}" if line else "" for line in body),
            f"{step}return {results}",
            "",
        ]
        call = self._checkpointed(own.index(start) if start in own else None)
        arguments = ", ".join([*given, *found.carried])
        if len(f"{self._indent}{step}{results} = {call}({arguments})") > _WIDE:
            name = self._new("checkpointed")
            made.append(f"{name} = {call}")
            call = name
        end = sliced.count
        if groups.has_rest:
            end = self._new("covered")
            count = sliced.count if _is_simple(sliced.count) else f"({sliced.count})"
            made.append(f"{end} = {count} // {groups.size} * {groups.size}")
        made += [
            f"for {start} in range(0, {end}, {groups.size}):",
            f"{step}{results} = {call}({arguments})",
        ]
        if groups.has_rest:
            left = [self._rest(each, sliced, end) for each in given]
            call = f"{results} = {run}({', '.join([*left, *found.carried])})"
            if {*found.results} <= {*found.carried}:
                made.append(call)
            else:  # Of another number of iterations none may be left, which would make no result.
                made += [f"if {end} < {sliced.count}:", f"{step}{call}"]
        return made

    def _rest(self, given: str, sliced: _Sliced, end: str) -> str:
        """Return what a group is given, of what is left over."""
        if given == self._start:
            return end
        return f"{sliced.sequence}[{end}:]" if given == sliced.group else given

    def _checkpointed(self, static: int | None) -> str:
        """Return the function of a group as a checkpoint; argument number `static` is no array."""
        file, loop = self._file, self._loop
        name = file.spelling(
            self._qualname, self._imported, loop, ("jax.remat",) if self._library == "jax" else ()
        )
        takes_it = self._library == "equinox" or static is None
        keywords = "" if takes_it else f", static_argnums={static}"
        policy = file.policy(self._groups.policy, loop)
        keywords += f", policy={policy}" if policy else ""
        return f"{name}({self._run}{keywords})"

    def _moved(self, group: str, step: str) -> list[str]:
        """Return the lines of the loop, going through a group."""
        source, loop = self._file.source, self._loop
        span, iterated = source.span(loop), source.span(loop.iter)
        head = source.text[source.start(span) : source.start(iterated)] + group
        text = head + source.text[source.end(iterated) : self._end()]
        lines = text.splitlines()
        return [line.removeprefix(self._indent) for line in lines]

    def _end(self) -> int:
        """Return where the loop ends, with the comment on its last line."""
        source = self._file.source
        last = source.span(self._loop.body[-1])
        after = source.lines[last.end_row - 1][last.end_column :]
        return source.end(last) + len(after.rstrip())

    def _sliced(self, node: ast.expr) -> _Sliced | None:
        """Return what is gone through in groups; None where it cannot be sliced as it is."""
        text = self._file.text(node)
        match node:
            case ast.Name() | ast.Attribute() | ast.Subscript():
                if all(isinstance(n, _PLAIN) for n in ast.walk(node)):
                    return self._of_sequence(text)
            case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]):
                if all(isinstance(n, (*_PLAIN, *_SUMS)) for a in args for n in ast.walk(a)):
                    found = self._of_sequence(text)
                    count = self._file.text(args[0]) if len(args) == 1 else found.count
                    return _Sliced(found.group, count)
                if len(args) == 1 and _is_length(args[0]):
                    return _Sliced(self._of_sequence(text).group, self._file.text(args[0]))
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner], keywords=[]):
                within = self._sliced(inner)
                if within is not None:
                    return _Sliced(f"enumerate({within.group}, {self._start})", within.count)
            case ast.Call(func=ast.Name(id="zip"), args=args, keywords=keywords) if args:
                each = [self._sliced(arg) for arg in args]
                known = [s for s in each if s is not None]
                if len(known) == len(args) and not any(isinstance(a, ast.Starred) for a in args):
                    more = [f"{k.arg}={self._file.text(k.value)}" for k in keywords]
                    if all(k.arg == "strict" for k in keywords):
                        group = ", ".join([*(s.group for s in known), *more])
                        return _Sliced(f"zip({group})", known[0].count)
        return None

    def _of_sequence(self, text: str) -> _Sliced:
        start, size = self._start, self._groups.size
        return _Sliced(f"{text}[{start} : {start} + {size}]", f"len({text})", text)

    def _self_name(self) -> str:
        args = self._function.args
        positional = [*args.posonlyargs, *args.args]
        if not positional:
            raise self._unwritable("the module that it is in is not known")
        return positional[0].arg

    def _library_of(self, files: FileRewrites, function: FunctionNode) -> str:
        """Return the library of the module that the loop is in a method of; else `jax`."""
        cls = self._file.facts.names.class_of(function)
        if cls is None or isinstance(function, ast.Lambda):
            return "jax"
        found = module_library(files, self._file, f"{cls.name}.{function.name}")
        return found if found in _CHECKPOINTS else "jax"

    # -- text --------------------------------------------------------------------------------

    def _new(self, name: str) -> str:
        return unused(name, self._used)

    def _follows_a_blank_line(self) -> bool:
        """Return whether a blank line, or the head of the block, is before the loop."""
        row = self._loop.lineno - 1
        before = self._file.source.lines[row - 1].strip() if row else ""
        return not before or before.endswith(":")

    def _unwritable(self, reason: str) -> UnwritableError:
        where = self._file.where(self._loop.lineno)
        return UnwritableError(
            where,
            f"the body of this loop cannot be made a function: {reason}; by hand:"
            f" {_by_hand(self._groups)}",
        )


_PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context)
_SUMS = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)


def _is_length(node: ast.expr) -> bool:
    """Return whether an expression is `len` of something that is plain."""
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[inner], keywords=[]):
            return all(isinstance(n, _PLAIN) for n in ast.walk(inner))
    return False


def _is_simple(text: str) -> bool:
    """Return whether an expression needs no brackets before an operator."""
    return isinstance(
        ast.parse(text, mode="eval").body,
        ast.Name | ast.Attribute | ast.Subscript | ast.Call | ast.Constant,
    )
