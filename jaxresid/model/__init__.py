"""The frozen values that all parts exchange: standard library only, no analysis, no formatting.

Bytes are integers in fields that end in `nbytes`. A loop's residual carries its stacked aval, so
its `nbytes` already counts every trip; `trips` only informs.
"""

from __future__ import annotations

from jaxresid.model.budget import Baseline as Baseline
from jaxresid.model.budget import BaselineLine as BaselineLine
from jaxresid.model.budget import Held as Held
from jaxresid.model.budget import Limits as Limits
from jaxresid.model.budget import LineBytes as LineBytes
from jaxresid.model.comparison.comparison import Comparison as Comparison
from jaxresid.model.comparison.comparison import ComparisonRow as ComparisonRow
from jaxresid.model.comparison.comparison import Timing as Timing
from jaxresid.model.comparison.comparison import with_answers as with_answers
from jaxresid.model.comparison.difference import CheckpointDifference as CheckpointDifference
from jaxresid.model.comparison.difference import Difference as Difference
from jaxresid.model.comparison.difference import DiffSide as DiffSide
from jaxresid.model.comparison.difference import LineDifference as LineDifference
from jaxresid.model.comparison.difference import ValueDifference as ValueDifference
from jaxresid.model.comparison.sweep import Sweep as Sweep
from jaxresid.model.comparison.sweep import SweepRow as SweepRow
from jaxresid.model.compiled import Collective as Collective
from jaxresid.model.compiled import Compiled as Compiled
from jaxresid.model.compiled import CompiledBuffer as CompiledBuffer
from jaxresid.model.compiled import CompiledReport as CompiledReport
from jaxresid.model.compiled import CompilerWarning as CompilerWarning
from jaxresid.model.interval import Answer as Answer
from jaxresid.model.interval import Interval as Interval
from jaxresid.model.interval import IntervalBasis as IntervalBasis
from jaxresid.model.interval import TimeBasis as TimeBasis
from jaxresid.model.interval import TimeInterval as TimeInterval
from jaxresid.model.interval import answer as answer
from jaxresid.model.interval import interval_between as interval_between
from jaxresid.model.interval import time_interval_between as time_interval_between
from jaxresid.model.listing import Equation as Equation
from jaxresid.model.listing import Listing as Listing
from jaxresid.model.listing import Split as Split
from jaxresid.model.listing import Variable as Variable
from jaxresid.model.out_of_memory import OomBuffer as OomBuffer
from jaxresid.model.out_of_memory import OomCause as OomCause
from jaxresid.model.out_of_memory import OomOther as OomOther
from jaxresid.model.out_of_memory import OomParts as OomParts
from jaxresid.model.out_of_memory import OomPool as OomPool
from jaxresid.model.out_of_memory import OomReport as OomReport
from jaxresid.model.out_of_memory import WayOut as WayOut
from jaxresid.model.plan.floor import Floor as Floor
from jaxresid.model.plan.floor import FloorPart as FloorPart
from jaxresid.model.plan.floor import Relief as Relief
from jaxresid.model.plan.floor import TriedPlace as TriedPlace
from jaxresid.model.plan.joint import Beaten as Beaten
from jaxresid.model.plan.joint import Configuration as Configuration
from jaxresid.model.plan.joint import FrontRow as FrontRow
from jaxresid.model.plan.joint import Selection as Selection
from jaxresid.model.plan.plan import Expression as Expression
from jaxresid.model.plan.plan import Plan as Plan
from jaxresid.model.plan.plan import PlannedPart as PlannedPart
from jaxresid.model.plan.plan import PlannedSite as PlannedSite
from jaxresid.model.plan.plan import PlannedValue as PlannedValue
from jaxresid.model.report.checkpoint import Checkpoint as Checkpoint
from jaxresid.model.report.checkpoint import CompiledChange as CompiledChange
from jaxresid.model.report.checkpoint import EstimatedVerdict as EstimatedVerdict
from jaxresid.model.report.checkpoint import Finding as Finding
from jaxresid.model.report.checkpoint import Verdict as Verdict
from jaxresid.model.report.cost import Cost as Cost
from jaxresid.model.report.cost import Phases as Phases
from jaxresid.model.report.lifetimes import Lifetime as Lifetime
from jaxresid.model.report.lifetimes import LifetimeReason as LifetimeReason
from jaxresid.model.report.lifetimes import Lifetimes as Lifetimes
from jaxresid.model.report.lifetimes import ProgramPoint as ProgramPoint
from jaxresid.model.report.lifetimes import without_names as without_names
from jaxresid.model.report.modules import ModuleMemory as ModuleMemory
from jaxresid.model.report.next_step import NextStep as NextStep
from jaxresid.model.report.offloading import Offloading as Offloading
from jaxresid.model.report.offloading import Transfers as Transfers
from jaxresid.model.report.peak import KeptBeyondPeak as KeptBeyondPeak
from jaxresid.model.report.peak import LiveValue as LiveValue
from jaxresid.model.report.peak import Peak as Peak
from jaxresid.model.report.peak import PhaseSpan as PhaseSpan
from jaxresid.model.report.report import Report as Report
from jaxresid.model.report.rows import ResidualGroup as ResidualGroup
from jaxresid.model.report.rows import ResidualGroups as ResidualGroups
from jaxresid.model.report.rows import ResidualRow as ResidualRow
from jaxresid.model.target import JaxInfo as JaxInfo
from jaxresid.model.target import Mesh as Mesh
from jaxresid.model.target import PlaceInfo as PlaceInfo
from jaxresid.model.target import Target as Target
from jaxresid.model.values import NOWHERE as NOWHERE
from jaxresid.model.values import Argument as Argument
from jaxresid.model.values import Aval as Aval
from jaxresid.model.values import Computed as Computed
from jaxresid.model.values import Constant as Constant
from jaxresid.model.values import Consumer as Consumer
from jaxresid.model.values import Literal as Literal
from jaxresid.model.values import Location as Location
from jaxresid.model.values import Mark as Mark
from jaxresid.model.values import Origin as Origin
from jaxresid.model.values import Residual as Residual
from jaxresid.model.values import Source as Source
from jaxresid.model.values import Totals as Totals
from jaxresid.model.values import totals_of as totals_of

SCHEMA_VERSION = 1
