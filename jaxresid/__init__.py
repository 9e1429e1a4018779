"""What a JAX backward pass keeps, which line keeps it, and which `jax.checkpoint` earns its keep.

What needs jax loads on first use, so importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxresid.errors import JaxresidError as JaxresidError
from jaxresid.inputs import Inputs as Inputs
from jaxresid.model import Report as Report
from jaxresid.model import Residual as Residual

if TYPE_CHECKING:
    from jaxresid.inspector import inspect as inspect

__version__ = "0.1.0"
__all__ = ["Inputs", "JaxresidError", "Report", "Residual", "__version__", "inspect"]


def __getattr__(name: str) -> Any:
    if name == "inspect":
        from jaxresid.inspector import inspect

        return inspect
    raise AttributeError(f"module 'jaxresid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
