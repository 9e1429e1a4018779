"""Precision and recall of the linter on released packages that were read by hand.

    python -m tests.benchmarks.lint_judged FOLDER            score the linter as it is
    python -m tests.benchmarks.lint_judged FOLDER --fetch    download what is missing first

FOLDER holds the unpacked packages, each as `name==version`. There are four tables of the same
form, of different packages: tests/linter/released/, and tests/linter/released_later/,
released_latest/ and released_newest/, each judged when the rules had been changed for those before.
`findings.jsonl` has a judgement of every error and warning, `silent.jsonl` of a random sample of
the checkpoints on which nothing was said (all of them in the later tables, but for the names of one
package in the newest), `packages.jsonl` how many there are of these. What the linter says that no
row judges is listed: read it, and add a row. Half of the packages of the first and the newest, by a
hash of the name, were kept back until the rules had been changed for the others. In the newest,
whoever judged did not know what the linter says.
"""

import argparse
import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jaxresid.linter.run.files import LintRun
from jaxresid.settings.config import Config, Selection
from tests.packages import download
from tests.where import TESTS

TABLE = TESTS / "linter" / "released"
LATER = TESTS / "linter" / "released_later"
LATEST = TESTS / "linter" / "released_latest"
NEWEST = TESTS / "linter" / "released_newest"
DEVELOPMENT, KEPT_BACK = HALVES = ("development", "kept back")


@dataclass(frozen=True, slots=True)
class Judged:
    """A judged finding.

    Attributes:
      package: `name==version`.
      path: the file in the package.
      row: the row of the finding, from 1.
      code: its code.
      judgement: `right`, `arguable` or `wrong`.
      reason: why, in one line.
    """

    package: str
    path: str
    row: int
    code: str
    judgement: str
    reason: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What identifies the finding."""
        return self.package, self.path, self.row, self.code


@dataclass(frozen=True, slots=True)
class Silent:
    """A sampled checkpoint, or policy, on which no error or warning was when it was drawn.

    Attributes:
      package: `name==version`.
      path: the file in the package.
      row: its first row, from 1.
      end_row: its last row.
      wanted: the codes of what a reviewer would want said there; `OTHER` where no rule is about it.
      reason: why, in one line.
    """

    package: str
    path: str
    row: int
    end_row: int
    wanted: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Table:
    """The judgements.

    Attributes:
      findings: of what the linter says.
      silent: of the sample on which it said nothing.
      population: package -> how many there were to sample from.
    """

    findings: tuple[Judged, ...]
    silent: tuple[Silent, ...]
    population: dict[str, int]

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages, in order."""
        return tuple(sorted(self.population))


@dataclass(frozen=True, slots=True)
class Score:
    """The figures of some packages.

    Attributes:
      judgements: how many findings were judged what.
      unjudged: the findings that no row judges.
      found: how many things that a reviewer would want said are now said in the sample.
      missed: how many are still not.
      sampled: the size of the sample.
      population: what it was drawn from.
    """

    judgements: Counter[str]
    unjudged: tuple[tuple[str, str, int, str], ...]
    found: int
    missed: int
    sampled: int
    population: int

    @property
    def precision(self) -> tuple[float, float, float]:
        """Right among right and wrong, with its 95 % interval."""
        right, wrong = self.judgements["right"], self.judgements["wrong"]
        return (_share(right, right + wrong), *wilson(right, right + wrong))

    @property
    def recall(self) -> tuple[float, float, float]:
        """Right among right and missed, the missed ones scaled up from the sample."""
        if not self.judgements["right"]:  # then the sample says how much of nothing was found
            return (_share(0, self.missed), *wilson(0, self.missed))
        low, high = wilson(self.missed, self.sampled)
        shares = (_share(self.missed, self.sampled), high, low)
        right = self.judgements["right"]
        return tuple(_share(right, right + s * self.population) for s in shares)  # type: ignore[return-value]


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share; (0, 1) of nothing.

    Args:
      count: how many of `total`.
      total: how many there are.
      z: the quantile of the normal distribution.
    """
    if not total:
        return 0.0, 1.0
    share, square = count / total, z * z / total
    centre = share + square / 2
    spread = z * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return max(0.0, (centre - spread) / (1 + square)), min(1.0, (centre + spread) / (1 + square))


def half(package: str) -> str:
    """Return which half a package, `name==version`, belongs to."""
    name = package.partition("==")[0]
    return HALVES[hashlib.sha256(name.encode()).digest()[0] & 1]


def read(directory: Path = TABLE) -> Table:
    """Return the table."""
    findings = [Judged(**row) for row in _rows(directory / "findings.jsonl")]
    silent = [
        Silent(**{**row, "wanted": tuple(row["wanted"])})
        for row in _rows(directory / "silent.jsonl")
    ]
    population = {r["package"]: r["silent"] for r in _rows(directory / "packages.jsonl")}
    return Table(tuple(findings), tuple(silent), population)


def _rows(path: Path) -> Iterator[dict]:
    return map(json.loads, path.read_text().splitlines())


def said(tree: Path) -> set[tuple[str, int, str]]:
    """Return the errors and warnings of a tree as (path, row, code), with every rule on."""
    run = LintRun(Config(tree, selections=(Selection(select=("ALL",)),)))
    return {
        (Path(v.path).relative_to(tree).as_posix(), v.span.row, v.code)
        for linted in run.run([str(tree)], jobs=1)
        for v in linted.violations
        if v.severity != "info"
    }


def score(
    table: Table, findings: dict[str, set[tuple[str, int, str]]], packages: Iterable[str]
) -> Score:
    """Return the figures of some packages.

    Args:
      table: the judgements.
      findings: package -> what the linter says now.
      packages: those to count.
    """
    judged = {j.key: j.judgement for j in table.findings}
    chosen = set(packages)
    now = sorted((p, *f) for p in chosen for f in findings[p])
    sample = [s for s in table.silent if s.package in chosen]
    wanted = [(s, code) for s in sample for code in s.wanted]
    found = sum(_is_said(s, code, findings[s.package]) for s, code in wanted)
    return Score(
        Counter(judged[f] for f in now if f in judged),
        tuple(f for f in now if f not in judged),
        found,
        len(wanted) - found,
        len(sample),
        sum(table.population[p] for p in chosen),
    )


def _is_said(site: Silent, code: str, findings: set[tuple[str, int, str]]) -> bool:
    rows = range(site.row, site.end_row + 1)
    return any((site.path, row, code) in findings for row in rows)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def report(name: str, result: Score) -> str:
    """Return the figures as lines of text."""
    counts = result.judgements
    lines = [
        f"{name}: {counts['right']} right, {counts['arguable']} arguable, {counts['wrong']} wrong; "
        f"{result.missed} missed among {result.sampled} silent of {result.population}, "
        f"{result.found} found since"
    ]
    for title, (value, low, high) in (
        ("precision", result.precision),
        ("recall", result.recall),
    ):
        lines.append(f"  {title:<9} {value:6.1%}  ({low:.1%} to {high:.1%})")
    lines += [f"  not judged: {p} {path}:{row} {code}" for p, path, row, code in result.unjudged]
    return "\n".join(lines)


def main() -> None:
    """Print the figures of the tables, and of both halves of the first and the newest."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the unpacked packages, as name==version")
    parser.add_argument("--fetch", action="store_true", help="download what is missing")
    options = parser.parse_args()
    tables = {"first": read(), "later": read(LATER), "latest": read(LATEST), "newest": read(NEWEST)}
    packages = [p for table in tables.values() for p in table.packages]
    missing = [p for p in packages if not (options.folder / p).is_dir()]
    if options.fetch:
        for package in missing:
            download(package, options.folder / package)
    elif missing:
        sys.exit(f"not in {options.folder}: {' '.join(missing)}; --fetch downloads them")
    findings = {p: said(options.folder.resolve() / p) for p in packages}
    for name, table in tables.items():
        halves = HALVES if name in {"first", "newest"} else ()
        for each in halves:
            chosen = [p for p in table.packages if half(p) == each]
            print(report(f"{name}, {each}", score(table, findings, chosen)))
        print(report(name, score(table, findings, table.packages)))


if __name__ == "__main__":
    main()
