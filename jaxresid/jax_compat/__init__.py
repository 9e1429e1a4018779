"""Handle every difference between JAX versions, each with the version that needs it.

The only package that may import `jax._src`, and only for Refs, for what code asks about devices,
and to read or compile what is lowered already: jaxprs, eqns, params and tracebacks are reached from
`jax.stages.Traced`, which is public. Primitives are known by name, never by import, since the
module that holds them moves between versions.
"""

from __future__ import annotations

from jaxresid.jax_compat.callers import keeping_callers as keeping_callers
from jaxresid.jax_compat.callers import untagged as untagged
from jaxresid.jax_compat.callers import whole_tracebacks as whole_tracebacks
from jaxresid.jax_compat.callers import without_callers as without_callers
from jaxresid.jax_compat.compiling import bytecode as bytecode
from jaxresid.jax_compat.compiling import compiled as compiled
from jaxresid.jax_compat.compiling import numbers_frames as numbers_frames
from jaxresid.jax_compat.compiling import without_locations as without_locations
from jaxresid.jax_compat.derivatives import Derivative as Derivative
from jaxresid.jax_compat.derivatives import derivatives as derivatives
from jaxresid.jax_compat.derivatives import is_unmarked as is_unmarked
from jaxresid.jax_compat.derivatives import marking_derivatives as marking_derivatives
from jaxresid.jax_compat.derivatives import name_stack as name_stack
from jaxresid.jax_compat.derivatives import settle_derivatives as settle_derivatives
from jaxresid.jax_compat.derivatives import whole_name_stack as whole_name_stack
from jaxresid.jax_compat.devices import ASSUMED_GPU as ASSUMED_GPU
from jaxresid.jax_compat.devices import assuming_gpu as assuming_gpu
from jaxresid.jax_compat.devices import first_device as first_device
from jaxresid.jax_compat.devices import recording_device_queries as recording_device_queries
from jaxresid.jax_compat.devices import skip_cuda_plugin as skip_cuda_plugin
from jaxresid.jax_compat.devices import topology_devices as topology_devices
from jaxresid.jax_compat.forward_rules import forward_rule as forward_rule
from jaxresid.jax_compat.forward_rules import with_forward_rule as with_forward_rule
from jaxresid.jax_compat.host_memory import as_host_put as as_host_put
from jaxresid.jax_compat.host_memory import host_sharding as host_sharding
from jaxresid.jax_compat.host_memory import put_in as put_in
from jaxresid.jax_compat.host_memory import tells_memory as tells_memory
from jaxresid.jax_compat.jacobians import JacobianCall as JacobianCall
from jaxresid.jax_compat.jacobians import replacing_jacobian_calls as replacing_jacobian_calls
from jaxresid.jax_compat.making import as_call as as_call
from jaxresid.jax_compat.making import as_constraint as as_constraint
from jaxresid.jax_compat.making import as_function as as_function
from jaxresid.jax_compat.making import as_jit_jaxpr as as_jit_jaxpr
from jaxresid.jax_compat.making import as_name as as_name
from jaxresid.jax_compat.making import as_remat as as_remat
from jaxresid.jax_compat.making import as_removed_checkpoint as as_removed_checkpoint
from jaxresid.jax_compat.making import bind_call as bind_call
from jaxresid.jax_compat.making import converted as converted
from jaxresid.jax_compat.making import implementation as implementation
from jaxresid.jax_compat.making import is_removed_checkpoint as is_removed_checkpoint
from jaxresid.jax_compat.making import new_var_like as new_var_like
from jaxresid.jax_compat.making import part_of as part_of
from jaxresid.jax_compat.making import with_bound_params as with_bound_params
from jaxresid.jax_compat.making import with_constants_as_inputs as with_constants_as_inputs
from jaxresid.jax_compat.making import with_eqns as with_eqns
from jaxresid.jax_compat.making import with_inputs_as_constants as with_inputs_as_constants
from jaxresid.jax_compat.making import with_jaxpr as with_jaxpr
from jaxresid.jax_compat.making import with_label as with_label
from jaxresid.jax_compat.making import with_other_eqns as with_other_eqns
from jaxresid.jax_compat.making import with_outvars as with_outvars
from jaxresid.jax_compat.making import with_params as with_params
from jaxresid.jax_compat.making import with_traceback as with_traceback
from jaxresid.jax_compat.meshes import axes_of as axes_of
from jaxresid.jax_compat.meshes import in_mesh as in_mesh
from jaxresid.jax_compat.meshes import is_explicit as is_explicit
from jaxresid.jax_compat.meshes import is_in_shard_map as is_in_shard_map
from jaxresid.jax_compat.meshes import mesh_that_says as mesh_that_says
from jaxresid.jax_compat.meshes import new_abstract_mesh as new_abstract_mesh
from jaxresid.jax_compat.meshes import new_mesh as new_mesh
from jaxresid.jax_compat.meshes import open_dims as open_dims
from jaxresid.jax_compat.meshes import spec_split as spec_split
from jaxresid.jax_compat.meshes import split_of as split_of
from jaxresid.jax_compat.meshes import typed_split as typed_split
from jaxresid.jax_compat.pmap import mapping_over_absent_devices as mapping_over_absent_devices
from jaxresid.jax_compat.reading import as_policies_see as as_policies_see
from jaxresid.jax_compat.reading import bound_params as bound_params
from jaxresid.jax_compat.reading import has_own_rules as has_own_rules
from jaxresid.jax_compat.reading import host_results as host_results
from jaxresid.jax_compat.reading import is_dropped as is_dropped
from jaxresid.jax_compat.reading import is_jaxpr as is_jaxpr
from jaxresid.jax_compat.reading import is_literal as is_literal
from jaxresid.jax_compat.reading import is_pruned as is_pruned
from jaxresid.jax_compat.reading import literal_text as literal_text
from jaxresid.jax_compat.reading import memory_space as memory_space
from jaxresid.jax_compat.reading import moved_to as moved_to
from jaxresid.jax_compat.reading import open_jaxpr as open_jaxpr
from jaxresid.jax_compat.reading import params as params
from jaxresid.jax_compat.reading import primitive_name as primitive_name
from jaxresid.jax_compat.reading import scan_counts as scan_counts
from jaxresid.jax_compat.reading import traceback as traceback
from jaxresid.jax_compat.reading import traced_function as traced_function
from jaxresid.jax_compat.refs import abstract_ref as abstract_ref
from jaxresid.jax_compat.refs import held_refs as held_refs
from jaxresid.jax_compat.refs import is_ref as is_ref
from jaxresid.jax_compat.refs import is_ref_type as is_ref_type
from jaxresid.jax_compat.refs import without_refs as without_refs
from jaxresid.jax_compat.transforms import checkpointed_function as checkpointed_function
from jaxresid.jax_compat.transforms import replacing_differentiated as replacing_differentiated
from jaxresid.jax_compat.transforms import replacing_vjp as replacing_vjp
from jaxresid.jax_compat.transforms import static_arguments as static_arguments
from jaxresid.jax_compat.version import MINIMUM as MINIMUM
from jaxresid.jax_compat.version import compilers as compilers
from jaxresid.jax_compat.version import flags as flags
from jaxresid.jax_compat.version import import_jax as import_jax
from jaxresid.jax_compat.version import jax_version as jax_version
from jaxresid.jax_compat.version import jaxlib_version as jaxlib_version
from jaxresid.jax_compat.vmaps import VmapCall as VmapCall
from jaxresid.jax_compat.vmaps import replacing_vmap_calls as replacing_vmap_calls
