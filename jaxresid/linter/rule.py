"""Define what a rule is: one class, in one file, with the examples that its page shows.

Rules hold no state. `find` gets the facts of a module and yields violations, made by `report`.
The docstring is the documentation: a summary line, then the sections that `SECTIONS` names, the
last one only if the rule has a fix.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from jaxresid.base.violations import Applicability, Fix, Related, RuleInfo, Severity, Violation
from jaxresid.linter.text.prefilter import CHECKPOINT_MARKERS

if TYPE_CHECKING:
    from jaxresid.base.violations import Span
    from jaxresid.linter.resolve.facts import Facts

SECTIONS = (
    "What it does",
    "Why is this bad?",
    "Use instead",
    "When is this fine?",
    "Is the fix safe?",
)


class Example:
    """Source that illustrates a rule.

    Text that begins with a new line is an indented block: it loses that line and the indentation,
    when it is asked for, since who only runs the rules never does.

    Attributes:
      source: a module. In a bad example the lines that are reported end in `# !`.
      fixed: the exact text after all fixes (unsafe ones too); None where there is no fix.
      files: other modules of its project, path -> source.
      jax: the targeted jax, where the rule depends on it.
      on: the place whose compiler the rule depends on; '' for any.
      options: options of `jaxresid check` that the rule needs.
    """

    __slots__ = ("_files", "_fixed", "_source", "jax", "on", "options")

    def __init__(
        self,
        source: str,
        fixed: str | None = None,
        files: Mapping[str, str] | None = None,
        jax: tuple[int, int] | None = None,
        on: str = "",
        options: tuple[str, ...] = (),
    ) -> None:
        self._source, self._fixed, self._files = source, fixed, files or {}
        self.jax, self.on, self.options = jax, on, options

    @property
    def source(self) -> str:
        """The module."""
        return _dedented(self._source)

    @property
    def fixed(self) -> str | None:
        """Its text after all fixes, if there are any."""
        return None if self._fixed is None else _dedented(self._fixed)

    @property
    def files(self) -> dict[str, str]:
        """The other modules of its project, by path."""
        return {path: _dedented(text) for path, text in self._files.items()}


def _dedented(text: str) -> str:
    return textwrap.dedent(text[1:]) if text.startswith("\n") else text


class Documented:
    """The description that every rule gives of itself, in the linter and in `jaxresid check`.

    Class attributes:
      code, name, severity: as in `Violation`; `name` is also the module's name, `-` as `_`.
      why, help: the consequence and the remedy, for every violation that gives none of its own.
      fixes: the best applicability its fixes have; None if it never fixes.
      project: whether it needs to see the whole project.
      traced: whether only a trace can tell, so that `jaxresid check` finds it and the linter does
        not.
      since: the first jaxresid that has it.
      jax: a specifier for the versions of jax that it applies to, for documentation; the rule
        itself asks `facts.jax_is`.
      bad, good: the examples of its page, the clearest first.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    why: ClassVar[str] = ""
    help: ClassVar[str] = ""
    fixes: ClassVar[Applicability | None] = None
    project: ClassVar[bool] = False
    traced: ClassVar[bool] = False
    since: ClassVar[str] = "0.1.0"
    jax: ClassVar[str] = ""
    bad: ClassVar[tuple[Example, ...]]
    good: ClassVar[tuple[Example, ...]]

    @classmethod
    def is_default(cls) -> bool:
        """Return whether the rule is on without being selected."""
        return cls.severity != "info"

    @classmethod
    def info(cls) -> RuleInfo:
        """Return the rule's documentation."""
        summary, sections = documentation(cls)
        return RuleInfo(
            cls.code,
            cls.name,
            cls.severity,
            summary,
            sections,
            cls.fixes,
            cls.is_default(),
            cls.since,
            cls.jax,
            cls.project,
            tuple(e.source for e in cls.bad),
            tuple(e.source for e in cls.good),
            cls.traced,
        )


class Rule(Documented):
    """Base class of the linter's rules.

    Class attributes:
      lenient_in_tests: whether the rule reports only an info in a test module: a test of what
        checkpoint does may well do what is pointless elsewhere.
      markers: a file that mentions none of these is not read for this rule.
    """

    lenient_in_tests: ClassVar[bool] = False
    markers: ClassVar[tuple[bytes, ...]] = CHECKPOINT_MARKERS

    def find(self, facts: Facts) -> Iterator[Violation]:
        """Yield the violations of this rule in one module."""
        raise NotImplementedError

    @classmethod
    def report(
        cls,
        facts: Facts,
        node: ast.expr | ast.stmt | ast.keyword | ast.alias | ast.arg,
        message: str,
        *,
        fix: Fix | None = None,
        related: tuple[Related, ...] = (),
        why: str | None = None,
        help: str | None = None,
        span: Span | None = None,
    ) -> Violation:
        """Return a violation of this rule at `node`.

        Args:
          facts: the facts of the module.
          node: what is reported.
          message: what is wrong here, without the remedy.
          fix: the fix, None if there is none.
          related: other places that explain the violation.
          why: the consequence; None for the rule's own `why`.
          help: the remedy; None for the rule's own `help`.
          span: the text to report; None for that of `node`.
        """
        return Violation(
            cls.code,
            cls.name,
            cls.severity,
            message,
            facts.source.path,
            span or facts.source.span(node),
            noqa_rows=noqa_rows(facts, node),
            why=cls.why if why is None else why,
            help=cls.help if help is None else help,
            fix=fix,
            related=related,
        )


def noqa_rows(facts: Facts, node: ast.AST) -> tuple[int, ...]:
    """Return the rows where a comment silences a violation at `node`.

    They are the rows of the node's statement, only the header of a compound statement. For a
    decorator they are its own rows and that of the `def`.
    """
    names = facts.names
    statement = names.statement(node)
    rows = set(range(statement.lineno, _header_end(statement) + 1))
    for decorator in getattr(statement, "decorator_list", []):
        if node is decorator or decorator in names.ancestors(node):
            end = decorator.end_lineno or decorator.lineno
            return tuple(sorted({statement.lineno, *range(decorator.lineno, end + 1)}))
    return tuple(sorted(rows))


def _header_end(statement: ast.stmt) -> int:
    """Return the last row of a statement, or of the header of a compound statement."""
    if not hasattr(statement, "body"):
        return statement.end_lineno or statement.lineno
    end = statement.lineno
    for name, value in ast.iter_fields(statement):
        if name in {"body", "orelse", "finalbody", "handlers", "decorator_list", "cases"}:
            continue
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST):
                rows = (getattr(inner, "end_lineno", None) or 0 for inner in ast.walk(child))
                end = max(end, *rows, 0)
    return end


def documentation(cls: type[Documented]) -> tuple[str, dict[str, str]]:
    """Return the summary and the sections (heading -> text) of a rule's docstring.

    Raises:
      ValueError: There is no docstring, or it has a section that is not in `SECTIONS`.
    """
    text = inspect.getdoc(cls) if cls.__doc__ else None
    if not text:
        raise ValueError(f"{cls.__name__} has no docstring")
    summary, _, rest = text.partition("\n")
    parts = re.split(r"^## (.+)$", rest, flags=re.MULTILINE)
    sections = {
        heading.strip(): body.strip()
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    unknown = set(sections) - set(SECTIONS)
    if unknown:
        raise ValueError(f"{cls.__name__}: unknown sections {sorted(unknown)}")
    return summary.strip(), sections
