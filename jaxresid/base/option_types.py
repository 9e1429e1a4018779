"""Types for options that take one of a few words; the command line's choices are made from them."""

from __future__ import annotations

from typing import Literal

Mode = Literal["auto", "loss", "program"]
Minimized = Literal["recompute", "time", "memory"]
Maximized = Literal["throughput", "batch"]
Aim = Literal["recompute", "time", "memory", "throughput", "batch"]
# The frameworks whose settings `plan --emit` writes.
Framework = Literal["linen", "nnx", "equinox", "haiku", "haliax", "keras", "maxtext"]
MeshMode = Literal["auto", "explicit"]
# What `Report.group_by` sums residuals by.
ResidualKey = Literal[
    "line",
    "file",
    "function",
    "module",
    "name",
    "primitive",
    "dtype",
    "shape",
    "memory",
    "kind",
    "argument",
    "phase",
]
GroupBy = Literal["line", "function", "name", "primitive", "scope", "argument", "none"]
OutputFormat = Literal[
    "text",
    "concise",
    "json",
    "json-lines",
    "sarif",
    "github",
    "gitlab",
    "junit",
    "rdjson",
    "lsp",
]
# What `-f svg` draws of a report.
PictureView = Literal["timeline", "icicle"]
ReportView = Literal["peak", "residuals", "checkpoints", "modules", "timeline"]
