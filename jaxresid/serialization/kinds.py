"""The results that have a JSON document, by the word that it calls itself: a command's name."""

from __future__ import annotations

from jaxresid.results import (
    Comparison,
    CompiledReport,
    Difference,
    OomReport,
    Plan,
    Report,
    Split,
    Sweep,
)

Result = Report | Split | Comparison | Difference | Plan | CompiledReport | OomReport | Sweep
KINDS = {
    "report": Report,
    "split": Split,
    "compare": Comparison,
    "diff": Difference,
    "plan": Plan,
    "compile": CompiledReport,
    "oom": OomReport,
    "sweep": Sweep,
}
