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
    from jaxresid.documents.files import load as load
    from jaxresid.errors import DocumentError as DocumentError
    from jaxresid.errors import InputsError as InputsError
    from jaxresid.errors import JaxresidError as JaxresidError
    from jaxresid.errors import MissingJaxError as MissingJaxError
    from jaxresid.errors import SpecError as SpecError
    from jaxresid.errors import TargetError as TargetError
    from jaxresid.errors import TraceError as TraceError
    from jaxresid.linter import fix_source as fix_source
    from jaxresid.linter import lint_paths as lint_paths
    from jaxresid.linter import lint_source as lint_source
    from jaxresid.model import Argument as Argument
    from jaxresid.model import Aval as Aval
    from jaxresid.model import Beaten as Beaten
    from jaxresid.model import Checkpoint as Checkpoint
    from jaxresid.model import CheckpointDifference as CheckpointDifference
    from jaxresid.model import Collective as Collective
    from jaxresid.model import Comparison as Comparison
    from jaxresid.model import ComparisonRow as ComparisonRow
    from jaxresid.model import Compiled as Compiled
    from jaxresid.model import CompiledBuffer as CompiledBuffer
    from jaxresid.model import CompiledChange as CompiledChange
    from jaxresid.model import CompiledReport as CompiledReport
    from jaxresid.model import CompilerWarning as CompilerWarning
    from jaxresid.model import Computed as Computed
    from jaxresid.model import Configuration as Configuration
    from jaxresid.model import Constant as Constant
    from jaxresid.model import Consumer as Consumer
    from jaxresid.model import Cost as Cost
    from jaxresid.model import Derivative as Derivative
    from jaxresid.model import Difference as Difference
    from jaxresid.model import DiffSide as DiffSide
    from jaxresid.model import EstimatedVerdict as EstimatedVerdict
    from jaxresid.model import Expression as Expression
    from jaxresid.model import Finding as Finding
    from jaxresid.model import Floor as Floor
    from jaxresid.model import FloorPart as FloorPart
    from jaxresid.model import FrontRow as FrontRow
    from jaxresid.model import Gradient as Gradient
    from jaxresid.model import GrowingValue as GrowingValue
    from jaxresid.model import Growth as Growth
    from jaxresid.model import Interval as Interval
    from jaxresid.model import IntervalBasis as IntervalBasis
    from jaxresid.model import JaxInfo as JaxInfo
    from jaxresid.model import KeptBeyondPeak as KeptBeyondPeak
    from jaxresid.model import Largest as Largest
    from jaxresid.model import Lifetime as Lifetime
    from jaxresid.model import Lifetimes as Lifetimes
    from jaxresid.model import LineBytes as LineBytes
    from jaxresid.model import LineDifference as LineDifference
    from jaxresid.model import Literal as Literal
    from jaxresid.model import LiveValue as LiveValue
    from jaxresid.model import Location as Location
    from jaxresid.model import Mark as Mark
    from jaxresid.model import Mesh as Mesh
    from jaxresid.model import ModuleMemory as ModuleMemory
    from jaxresid.model import NextStep as NextStep
    from jaxresid.model import Offloading as Offloading
    from jaxresid.model import OomBuffer as OomBuffer
    from jaxresid.model import OomOther as OomOther
    from jaxresid.model import OomParts as OomParts
    from jaxresid.model import OomPool as OomPool
    from jaxresid.model import OomReport as OomReport
    from jaxresid.model import OomTrace as OomTrace
    from jaxresid.model import Origin as Origin
    from jaxresid.model import Peak as Peak
    from jaxresid.model import Phases as Phases
    from jaxresid.model import PhaseSpan as PhaseSpan
    from jaxresid.model import PlaceInfo as PlaceInfo
    from jaxresid.model import Plan as Plan
    from jaxresid.model import PlannedPart as PlannedPart
    from jaxresid.model import PlannedSite as PlannedSite
    from jaxresid.model import PlannedValue as PlannedValue
    from jaxresid.model import ProgramArray as ProgramArray
    from jaxresid.model import ProgramPoint as ProgramPoint
    from jaxresid.model import Relief as Relief
    from jaxresid.model import Report as Report
    from jaxresid.model import Residual as Residual
    from jaxresid.model import ResidualGroup as ResidualGroup
    from jaxresid.model import ResidualGroups as ResidualGroups
    from jaxresid.model import ResidualRow as ResidualRow
    from jaxresid.model import Selection as Selection
    from jaxresid.model import SizePeak as SizePeak
    from jaxresid.model import Source as Source
    from jaxresid.model import Sweep as Sweep
    from jaxresid.model import SweepRow as SweepRow
    from jaxresid.model import Target as Target
    from jaxresid.model import TimeBasis as TimeBasis
    from jaxresid.model import TimeInterval as TimeInterval
    from jaxresid.model import Timing as Timing
    from jaxresid.model import Totals as Totals
    from jaxresid.model import Transfers as Transfers
    from jaxresid.model import TriedPlace as TriedPlace
    from jaxresid.model import ValueDifference as ValueDifference
    from jaxresid.model import Verdict as Verdict
    from jaxresid.model import WayOut as WayOut
    from jaxresid.option_types import GroupBy as GroupBy
    from jaxresid.option_types import Mode as Mode
    from jaxresid.option_types import ResidualKey as ResidualKey
    from jaxresid.settings.config import Config as Config
    from jaxresid.targets.inputs import Inputs as Inputs
    from jaxresid.violations import Applicability as Applicability
    from jaxresid.violations import Edit as Edit
    from jaxresid.violations import Fix as Fix
    from jaxresid.violations import Linted as Linted
    from jaxresid.violations import Related as Related
    from jaxresid.violations import Severity as Severity
    from jaxresid.violations import Span as Span
    from jaxresid.violations import Violation as Violation
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
    "jaxresid.documents.files": "load",
    "jaxresid.settings.config": "Config",
    "jaxresid.errors": (
        "DocumentError InputsError JaxresidError MissingJaxError SpecError TargetError TraceError"
    ),
    "jaxresid.targets.inputs": "Inputs",
    "jaxresid.linter": "fix_source lint_paths lint_source",
    "jaxresid.model": (
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
    "jaxresid.violations": "Applicability Edit Fix Linted Related Severity Span Violation",
    "jaxresid.option_types": "GroupBy Mode ResidualKey",
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
