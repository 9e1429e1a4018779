"""Handle every difference between JAX versions, each with the version that needs it.

The only package that may import `jax._src`, and only for Refs, for what code asks about devices,
and to read or compile what is lowered already: jaxprs, eqns, params and tracebacks are reached from
`jax.stages.Traced`, which is public. Primitives are known by name, never by import, since the
module that holds them moves between versions.
"""

from __future__ import annotations

from jaxresid.jax_compat.binding import *
from jaxresid.jax_compat.callers import *
from jaxresid.jax_compat.compiling import *
from jaxresid.jax_compat.derivatives import *
from jaxresid.jax_compat.devices import *
from jaxresid.jax_compat.forward_rules import *
from jaxresid.jax_compat.host_memory import *
from jaxresid.jax_compat.jacobians import *
from jaxresid.jax_compat.making import *
from jaxresid.jax_compat.meshes import *
from jaxresid.jax_compat.patches import *
from jaxresid.jax_compat.pmap import *
from jaxresid.jax_compat.reading import *
from jaxresid.jax_compat.refs import *
from jaxresid.jax_compat.transforms import *
from jaxresid.jax_compat.version import *
from jaxresid.jax_compat.vmaps import *
