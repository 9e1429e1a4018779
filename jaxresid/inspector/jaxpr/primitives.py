"""State facts about JAX's primitives that do not depend on who asks."""

from __future__ import annotations

# What such an eqn makes is its operand in another shape, type or memory.
TRANSPARENT = frozenset(
    {
        *("reduce_precision", "convert_element_type", "bitcast_convert_type"),
        *("reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims"),
        *("copy", "copy_p", "device_put", "stop_gradient", "sharding_constraint"),
        *("pvary", "mesh_cast", "reshard", "layout_constraint"),
    }
)
