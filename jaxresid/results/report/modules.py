"""The memory of a program by the modules of its model."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.base.text.short_repr import Shown


@dataclass(frozen=True, slots=True, repr=False)
class ModuleMemory(Shown):
    """The bytes of a module and of all modules in it.

    Attributes:
      path: the names from the model down, `("blocks[*]", "mlp")`, repeated layers as one; empty for
        what is in no module.
      parameters_nbytes: the bytes of its parameters; of a function, of the arguments in it.
      gradients_nbytes: the bytes of the gradients of these, of those that are differentiated.
      optimizer_nbytes: the bytes of the optimizer's state for its parameters.
      residuals_nbytes: the bytes of the computed residuals that its methods make, in device memory.
      peak_nbytes: the bytes of what is live at the peak that is any of this, or that its methods
        make; None where the peak is not estimated.
    """

    path: tuple[str, ...]
    parameters_nbytes: int
    gradients_nbytes: int
    optimizer_nbytes: int
    residuals_nbytes: int
    peak_nbytes: int | None
