"""What a JAX backward pass keeps, which line keeps it, and which `jax.checkpoint` earns its keep.

Everything loads on first use, so importing this package is cheap.
"""

from __future__ import annotations

from jaxresid.errors import JaxresidError as JaxresidError

TYPE_CHECKING = False  # typing takes time, in which a Ctrl-C would be nobody's
if TYPE_CHECKING:
    from typing import Any

    from jaxresid.advice.check import check as check
    from jaxresid.advice.compare import compare as compare
    from jaxresid.advice.compile import compile as compile
    from jaxresid.advice.plan import plan as plan
    from jaxresid.advice.sweep import sweep as sweep
    from jaxresid.inputs import Inputs as Inputs
    from jaxresid.inspector import inspect as inspect
    from jaxresid.linter import fix_source as fix_source
    from jaxresid.linter import lint_paths as lint_paths
    from jaxresid.linter import lint_source as lint_source
    from jaxresid.model import Comparison as Comparison
    from jaxresid.model import Compiled as Compiled
    from jaxresid.model import CompiledReport as CompiledReport
    from jaxresid.model import Plan as Plan
    from jaxresid.model import Report as Report
    from jaxresid.model import Residual as Residual
    from jaxresid.model import Sweep as Sweep
    from jaxresid.violations import Violation as Violation

__version__ = "0.1.0"
# A commit hook starts this package at every commit: it imports what it uses and no more.
_LAZY = {
    "Comparison": "jaxresid.model",
    "Compiled": "jaxresid.model",
    "CompiledReport": "jaxresid.model",
    "Inputs": "jaxresid.inputs",
    "Plan": "jaxresid.model",
    "Report": "jaxresid.model",
    "Residual": "jaxresid.model",
    "Sweep": "jaxresid.model",
    "Violation": "jaxresid.violations",
    "check": "jaxresid.advice.check",
    "compare": "jaxresid.advice.compare",
    "compile": "jaxresid.advice.compile",
    "inspect": "jaxresid.inspector",
    "fix_source": "jaxresid.linter",
    "lint_paths": "jaxresid.linter",
    "lint_source": "jaxresid.linter",
    "plan": "jaxresid.advice.plan",
    "sweep": "jaxresid.advice.sweep",
}
__all__ = [
    "Comparison",
    "Compiled",
    "CompiledReport",
    "Inputs",
    "JaxresidError",
    "Plan",
    "Report",
    "Residual",
    "Sweep",
    "Violation",
    "__version__",
    "check",
    "compare",
    "compile",
    "fix_source",
    "inspect",
    "lint_paths",
    "lint_source",
    "plan",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'jaxresid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
