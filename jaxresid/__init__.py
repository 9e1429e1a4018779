"""Show what a JAX backward pass keeps, which line keeps it, and which `jax.checkpoint` pays off.

Everything loads on first use, so importing this package is cheap.
"""

from __future__ import annotations

from jaxresid._version import __version__ as __version__

TYPE_CHECKING = False  # typing takes time, in which a Ctrl-C would be nobody's
# Every public name. Type checkers cannot follow `__getattr__`: they read these imports, and
# tests/test_api.py holds that `_PUBLIC` says the same.
if TYPE_CHECKING:
    from typing import Any

    from jaxresid.advice.check.check import check as check
    from jaxresid.advice.compare.compare import compare as compare
    from jaxresid.advice.compile.ahead_of_time import compile as compile
    from jaxresid.advice.compile.report import inspect as inspect
    from jaxresid.advice.diff.difference import diff as diff
    from jaxresid.advice.oom.oom import oom as oom
    from jaxresid.advice.plan.emit.policy import policy as policy
    from jaxresid.advice.plan.joint.api import plan as plan
    from jaxresid.advice.sweep.sweep import sweep as sweep
    from jaxresid.base.errors import DocumentError as DocumentError
    from jaxresid.base.errors import InputsError as InputsError
    from jaxresid.base.errors import JaxresidError as JaxresidError
    from jaxresid.base.errors import MissingJaxError as MissingJaxError
    from jaxresid.base.errors import SpecError as SpecError
    from jaxresid.base.errors import TargetError as TargetError
    from jaxresid.base.errors import TraceError as TraceError
    from jaxresid.base.option_types import GroupBy as GroupBy
    from jaxresid.base.option_types import Mode as Mode
    from jaxresid.base.option_types import ResidualKey as ResidualKey
    from jaxresid.base.violations import Applicability as Applicability
    from jaxresid.base.violations import Edit as Edit
    from jaxresid.base.violations import Fix as Fix
    from jaxresid.base.violations import Linted as Linted
    from jaxresid.base.violations import Related as Related
    from jaxresid.base.violations import Severity as Severity
    from jaxresid.base.violations import Span as Span
    from jaxresid.base.violations import Violation as Violation
    from jaxresid.linter import fix_source as fix_source
    from jaxresid.linter import lint_paths as lint_paths
    from jaxresid.linter import lint_source as lint_source
    from jaxresid.results import Argument as Argument
    from jaxresid.results import Aval as Aval
    from jaxresid.results import Beaten as Beaten
    from jaxresid.results import Checkpoint as Checkpoint
    from jaxresid.results import CheckpointDifference as CheckpointDifference
    from jaxresid.results import Collective as Collective
    from jaxresid.results import Comparison as Comparison
    from jaxresid.results import ComparisonRow as ComparisonRow
    from jaxresid.results import Compiled as Compiled
    from jaxresid.results import CompiledBuffer as CompiledBuffer
    from jaxresid.results import CompiledChange as CompiledChange
    from jaxresid.results import CompiledReport as CompiledReport
    from jaxresid.results import CompilerWarning as CompilerWarning
    from jaxresid.results import Computed as Computed
    from jaxresid.results import Configuration as Configuration
    from jaxresid.results import Constant as Constant
    from jaxresid.results import Consumer as Consumer
    from jaxresid.results import Cost as Cost
    from jaxresid.results import Derivative as Derivative
    from jaxresid.results import Difference as Difference
    from jaxresid.results import DiffSide as DiffSide
    from jaxresid.results import EstimatedVerdict as EstimatedVerdict
    from jaxresid.results import Expression as Expression
    from jaxresid.results import Finding as Finding
    from jaxresid.results import Floor as Floor
    from jaxresid.results import FloorPart as FloorPart
    from jaxresid.results import FrontRow as FrontRow
    from jaxresid.results import Gradient as Gradient
    from jaxresid.results import GrowingValue as GrowingValue
    from jaxresid.results import Growth as Growth
    from jaxresid.results import Interval as Interval
    from jaxresid.results import IntervalBasis as IntervalBasis
    from jaxresid.results import JaxInfo as JaxInfo
    from jaxresid.results import KeptBeyondPeak as KeptBeyondPeak
    from jaxresid.results import Largest as Largest
    from jaxresid.results import Lifetime as Lifetime
    from jaxresid.results import Lifetimes as Lifetimes
    from jaxresid.results import LineBytes as LineBytes
    from jaxresid.results import LineDifference as LineDifference
    from jaxresid.results import Literal as Literal
    from jaxresid.results import LiveValue as LiveValue
    from jaxresid.results import Location as Location
    from jaxresid.results import Mark as Mark
    from jaxresid.results import Mesh as Mesh
    from jaxresid.results import ModuleMemory as ModuleMemory
    from jaxresid.results import NextStep as NextStep
    from jaxresid.results import Offloading as Offloading
    from jaxresid.results import OomBuffer as OomBuffer
    from jaxresid.results import OomOther as OomOther
    from jaxresid.results import OomParts as OomParts
    from jaxresid.results import OomPool as OomPool
    from jaxresid.results import OomReport as OomReport
    from jaxresid.results import OomTrace as OomTrace
    from jaxresid.results import Origin as Origin
    from jaxresid.results import Peak as Peak
    from jaxresid.results import Phases as Phases
    from jaxresid.results import PhaseSpan as PhaseSpan
    from jaxresid.results import PlaceInfo as PlaceInfo
    from jaxresid.results import Plan as Plan
    from jaxresid.results import PlannedPart as PlannedPart
    from jaxresid.results import PlannedSite as PlannedSite
    from jaxresid.results import PlannedValue as PlannedValue
    from jaxresid.results import ProgramArray as ProgramArray
    from jaxresid.results import ProgramPoint as ProgramPoint
    from jaxresid.results import Relief as Relief
    from jaxresid.results import Report as Report
    from jaxresid.results import Residual as Residual
    from jaxresid.results import ResidualGroup as ResidualGroup
    from jaxresid.results import ResidualGroups as ResidualGroups
    from jaxresid.results import ResidualRow as ResidualRow
    from jaxresid.results import Selection as Selection
    from jaxresid.results import SizePeak as SizePeak
    from jaxresid.results import Source as Source
    from jaxresid.results import Sweep as Sweep
    from jaxresid.results import SweepRow as SweepRow
    from jaxresid.results import Target as Target
    from jaxresid.results import TimeBasis as TimeBasis
    from jaxresid.results import TimeInterval as TimeInterval
    from jaxresid.results import Timing as Timing
    from jaxresid.results import Totals as Totals
    from jaxresid.results import Transfers as Transfers
    from jaxresid.results import TriedPlace as TriedPlace
    from jaxresid.results import ValueDifference as ValueDifference
    from jaxresid.results import Verdict as Verdict
    from jaxresid.results import WayOut as WayOut
    from jaxresid.serialization.files import load as load
    from jaxresid.settings.config import Config as Config
    from jaxresid.targets.inputs import Inputs as Inputs
    from jaxresid.xla.places import Place as Place
    from jaxresid.xla.places import parse_place as parse_place

# A commit hook starts this package at every commit: it imports what it uses and no more.
_PUBLIC = {
    "jaxresid._version": "__version__",
    "jaxresid.advice.check.check": "check",
    "jaxresid.advice.compare.compare": "compare",
    "jaxresid.advice.compile.ahead_of_time": "compile",
    "jaxresid.advice.compile.report": "inspect",
    "jaxresid.advice.diff.difference": "diff",
    "jaxresid.advice.oom.oom": "oom",
    "jaxresid.advice.plan.emit.policy": "policy",
    "jaxresid.advice.plan.joint.api": "plan",
    "jaxresid.advice.sweep.sweep": "sweep",
    "jaxresid.serialization.files": "load",
    "jaxresid.settings.config": "Config",
    "jaxresid.base.errors": (
        "DocumentError InputsError JaxresidError MissingJaxError SpecError TargetError TraceError"
    ),
    "jaxresid.targets.inputs": "Inputs",
    "jaxresid.linter": "fix_source lint_paths lint_source",
    "jaxresid.results": (
        "Argument Aval Beaten Checkpoint CheckpointDifference Collective Comparison "
        "ComparisonRow Compiled CompiledBuffer CompiledChange CompiledReport CompilerWarning "
        "Computed Configuration Constant Consumer Cost Derivative DiffSide Difference "
        "EstimatedVerdict Expression Finding Floor FloorPart FrontRow Gradient GrowingValue "
        "Growth Interval IntervalBasis JaxInfo KeptBeyondPeak Largest Lifetime Lifetimes "
        "LineBytes LineDifference Literal LiveValue Location Mark Mesh ModuleMemory NextStep "
        "Offloading OomBuffer OomOther OomParts OomPool OomReport OomTrace Origin Peak "
        "PhaseSpan Phases PlaceInfo Plan PlannedPart PlannedSite PlannedValue ProgramArray "
        "ProgramPoint Relief Report Residual ResidualGroup ResidualGroups ResidualRow "
        "Selection SizePeak Source Sweep SweepRow Target TimeBasis TimeInterval Timing Totals "
        "Transfers TriedPlace ValueDifference Verdict WayOut"
    ),
    "jaxresid.base.violations": "Applicability Edit Fix Linted Related Severity Span Violation",
    "jaxresid.base.option_types": "GroupBy Mode ResidualKey",
    "jaxresid.xla.places": "Place parse_place",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'jaxresid' has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Define the magics of `%load_ext jaxresid` in a shell of IPython."""
    from jaxresid.magics import define

    define(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
