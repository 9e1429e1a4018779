"""What the linter reports, as frozen values that need only the standard library.

Positions have the same unit everywhere: rows are 1-based, columns are 0-based in code points, and
ends are exclusive. The renderers convert them on output (UTF-16 for language servers, UTF-8 bytes
for reviewdog).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxresid.base.text.short_repr import Shown

# The code of what is wrong with the configuration of a directory.
INVALID_CONFIGURATION = "invalid-configuration"
Severity = Literal["error", "warning", "info"]
Applicability = Literal["safe", "unsafe"]
OVER_LIMIT = "over-limit"

# The code, and the name, of what `check` could not look for because of a bug of ours. Like those of
# files that could not be linted it is no rule's, and nothing silences it.
CRASHED_FINDING = "crashed-finding"


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Span(Shown):
    """Source text from (row, column) up to but not including (end_row, end_column).

    Attributes:
      row: the first row, from 1.
      column: the first column in code points, from 0.
      end_row: the last row.
      end_column: the column behind the end.
    """

    row: int
    column: int
    end_row: int
    end_column: int


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Edit(Shown):
    """The replacement of the text in `span` by `text`; an empty span inserts.

    Attributes:
      span: the text that is replaced.
      text: what replaces it.
    """

    span: Span
    text: str


@dataclass(frozen=True, slots=True, repr=False)
class Fix(Shown):
    """Edits that belong together: either all are made or none.

    Attributes:
      title: what the fix does, as a command.
      edits: the edits.
      applicability: `safe` where the program means the same afterwards; `unsafe` where values,
        memory or compute may change.
    """

    title: str
    edits: tuple[Edit, ...]
    applicability: Applicability


@dataclass(frozen=True, slots=True, repr=False)
class Related(Shown):
    """Another place that explains a violation, such as where the loss is differentiated.

    Attributes:
      message: what is there: `differentiated here`.
      path: the file, as in `Violation`.
      span: where in the file or cell.
      cell: the notebook cell, from 1; None outside notebooks.
    """

    message: str
    path: str
    span: Span
    cell: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Violation(Shown):
    """One finding of a rule, or a file that could not be linted or is no configuration.

    The code of such a file is `invalid-syntax`, `over-limit`, `unreadable` or
    `invalid-configuration`.

    Attributes:
      code: `JXR101`; for files that could not be linted the same as `name`.
      name: the rule's name, which reads after "allow": `checkpointed-loss`.
      severity: `error`, `warning` or `info`.
      message: what is wrong here, one sentence or two, without the remedy.
      path: the file as it was named by the user or found, `-` for unnamed standard input.
      span: what is reported.
      cell: 1-based notebook cell that `span` is relative to; None outside notebooks.
      noqa_rows: the rows where a suppression comment silences it: those that the statement
        covers, and for a decorator the row of the `def` as well. Relative to `cell`.
      why: the consequence in one or two sentences; shown below the message by `text`.
      help: the remedy as a command: "checkpoint the layers instead".
      fix: the edits that would mend it; None if there are none.
      related: other places that explain it.
      measured: evidence from a trace; empty until `jaxresid check` fills it.
    """

    code: str
    name: str
    severity: Severity
    message: str
    path: str
    span: Span
    cell: int | None = None
    noqa_rows: tuple[int, ...] = ()
    why: str = ""
    help: str = ""
    fix: Fix | None = None
    related: tuple[Related, ...] = ()
    measured: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def sort_key(self) -> tuple[str, int, int, int, str, str]:
        """The key that every output sorts by: path, cell, row, column, code, message."""
        span = self.span
        return self.path, self.cell or 0, span.row, span.column, self.code, self.message


@dataclass(frozen=True, slots=True, repr=False)
class Linted(Shown):
    """The result of linting one file.

    Attributes:
      path: the path, as in the violations.
      violations: the violations, sorted, without suppressed ones.
      lines: source lines without their line ends, by notebook cell (None for a Python file), for
        excerpts and column units. Empty where there are no violations.
    """

    path: str
    violations: tuple[Violation, ...]
    lines: Mapping[int | None, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class RuleInfo(Shown):
    """The description of a rule, for `explain`, `rules` and the formats that list rules.

    Attributes:
      summary: one line, from the docstring.
      sections: heading -> text: what it does, why it is bad, use instead, when it is right after
        all, is the fix safe.
      fix: the best applicability that its fixes have; None if it has no fix.
      default: whether it is on without being selected.
      since: the first jaxresid version that has it.
      jax: the JAX versions it applies to, as a specifier such as `>=0.10`; empty for all.
      project: whether it needs to see the whole project before it can report anything.
      bad, good: example sources; `# !` ends the lines that are reported in `bad`.
      traced: whether only a trace can tell: `jaxresid check` finds it, `jaxresid lint` does not.
    """

    code: str
    name: str
    severity: Severity
    summary: str
    sections: Mapping[str, str]
    fix: Applicability | None
    default: bool
    since: str
    jax: str
    project: bool
    bad: tuple[str, ...]
    good: tuple[str, ...]
    traced: bool = False
