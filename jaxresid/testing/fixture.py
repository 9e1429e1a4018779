"""The fixture `residuals`: reports on functions, the limits of marks, and assertions."""

from __future__ import annotations

import inspect as source_of
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from jaxresid.advice.compile.limited import COMPILE_SECONDS
from jaxresid.advice.compile.report import inspect
from jaxresid.base.option_types import Mode
from jaxresid.results import Report, Verdict
from jaxresid.settings.project import project
from jaxresid.testing import assertions
from jaxresid.testing.limits import MarkedLimit, over
from jaxresid.testing.snapshots import assert_snapshot
from jaxresid.xla.places import Place


class Residuals:
    """Reports on what functions keep, held against the marks of a test.

    `residuals(loss)(*args)` returns a `jaxresid.Report`, and fails the test where a mark's limit is
    exceeded.

    """

    def __init__(
        self, *, limits: Sequence[MarkedLimit], node: pytest.Item, updates: bool = False
    ) -> None:
        self._limits = limits
        self._node = node
        self._updates = updates
        self._made: list[tuple[Report, str]] = []

    @property
    def calls(self) -> int:
        """How many reports were made."""
        return len(self._made)

    def __call__(
        self,
        fun: Callable[..., Any],
        *,
        argnums: int | Sequence[int] | None = None,
        has_aux: bool = False,
        mode: Mode = "auto",
        on: str | Place | None = None,
        mesh: Any = None,
        compile: bool = False,
        compile_time: float = COMPILE_SECONDS,
    ) -> Callable[..., Report]:
        """Return a function of the arguments of `fun` that returns a report and applies the marks.

        Args:
          fun: The function, as for `jaxresid.inspect`.
          argnums: Positional arguments to differentiate, as for `jaxresid.inspect`.
          has_aux: Whether `fun` returns `(output, auxiliary data)`.
          mode: Whether `fun` is a loss or a program as it is.
          on: The place of the report, and of the limits whose mark names none; None for the place
            of the first mark, else `on` of `[tool.jaxresid]` of the test's project, else as for
            `jaxresid.inspect`.
          mesh: The mesh that the program is split over.
          compile: Whether XLA's peaks and verdicts count instead of the estimate's.
          compile_time: Seconds that compiling may take.
        """

        def reported(*args: Any, **kwargs: Any) -> Report:
            __tracebackhide__ = True
            made: dict[Any, Report] = {}

            def at(place: str | Place | None) -> Report:
                if place not in made:
                    called = inspect(
                        fun,
                        argnums=argnums,
                        has_aux=has_aux,
                        mode=mode,
                        on=place,
                        mesh=mesh,
                        compile=compile,
                        compile_time=compile_time,
                    )
                    made[place] = called(*args, **kwargs)
                return made[place]

            chosen = on if on is not None else self._place()
            report = at(chosen)
            self._made.append((report, _source_file(fun)))
            self._hold([(at(each.on or chosen), each) for each in self._limits])
            return report

        return reported

    def _place(self) -> str | None:
        marked = next((each.on for each in self._limits if each.on is not None), None)
        return marked or project(self._node.path.parent).on

    def _hold(self, limited: Sequence[tuple[Report, MarkedLimit]]) -> None:
        __tracebackhide__ = True
        failures = []
        for report, each in limited:
            for figure, text in over(report, each.limits):
                if figure.fails:
                    failures.append(text)
                else:
                    self._node.warn(pytest.PytestWarning(text))
        if failures:
            pytest.fail("\n\n".join(failures), pytrace=False)

    def assert_names(self, report: Report, names: Sequence[str] | set[str]) -> None:
        """Fail unless exactly these names of `checkpoint_name` are kept.

        Args:
          report: The report.
          names: The names.
        """
        __tracebackhide__ = True
        _fail(assertions.names_problem(report, _names(names)))

    def assert_kept(self, report: Report, code: str, *, at_most: str | None = None) -> None:
        """Fail unless a line of source keeps something, and no more than a size.

        Args:
          report: The report.
          code: A part of the line, such as `jnp.sin(x @ w)`.
          at_most: The most that all lines with it may keep, such as `2GiB`; None for any.
        """
        __tracebackhide__ = True
        _fail(assertions.kept_problem(report, code, at_most))

    def assert_not_kept(self, report: Report, code: str) -> None:
        """Fail if a line of source keeps something, or if there is no such line.

        Args:
          report: A report of this fixture.
          code: A part of the line, such as `jnp.exp(`.
        """
        __tracebackhide__ = True
        file = next((file for made, file in self._made if made is report), "")
        _fail(assertions.not_kept_problem(report, code, file))

    def assert_verdicts(self, report: Report, verdicts: str | Mapping[str, str]) -> None:
        """Fail unless the checkpoints have these verdicts.

        Args:
          report: The report.
          verdicts: The one that all have, such as `earns-its-keep`, or the one of each checkpointed
            function or module by its name.

        Raises:
          ValueError: There is no such verdict.
        """
        __tracebackhide__ = True
        words = [verdicts] if isinstance(verdicts, str) else list(verdicts.values())
        known = [str(each) for each in Verdict]
        if unknown := [word for word in words if word not in known]:
            raise ValueError(f"{unknown[0]!r} is no verdict; one of {', '.join(known)}")
        _fail(assertions.verdicts_problem(report, verdicts))

    def assert_snapshot(self, report: Report, name: str = "") -> None:
        """Fail unless what is kept, and the verdicts, are as in the snapshot beside the test.

        `pytest --update-residuals` writes snapshots that are missing or differ.

        Args:
          report: The report.
          name: What tells several snapshots of one test apart.
        """
        __tracebackhide__ = True
        _fail(assert_snapshot(report, self._node, name, updates=self._updates))


def _fail(problem: str | None) -> None:
    __tracebackhide__ = True
    if problem is not None:
        pytest.fail(problem, pytrace=True)


def _names(names: Sequence[str] | set[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise TypeError(f"names are a list or a set of texts: [{names!r}]")
    return frozenset(names)


def _source_file(fun: Callable[..., Any]) -> str:
    try:
        return source_of.getsourcefile(source_of.unwrap(fun)) or ""
    except TypeError:  # a callable object
        return source_of.getsourcefile(type(fun)) or ""
