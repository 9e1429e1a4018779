"""Training steps of MaxText: `'maxtext:base.yml model_name=llama2-7b per_device_batch_size=4'`."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.configurations import Configuration
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.step import with_names
from jaxresid.base.errors import NOT_CAUGHT, InputsError, TargetError, summary
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.targets.inputs import Inputs

# Modes that train with another step than MaxText's own, or other parameters than all.
_OTHER_STEPS = ("enable_diloco", "enable_lora")
# Settings that say what --on does.
_DEVICES = ("compile_topology", "internal_compile", "internal_compile_num_devices")
# Attention that on a GPU is a kernel of Triton, which asks JAX's own device what it can do.
_TRITON = ("autoselected", "flash")
_UNKNOWN = re.compile(r"'([^']+)' not in ")


def adapt(request: ModelRequest) -> Adapted:
    """Return the training step that MaxText jits for a configuration.

    Its mesh is that of the configuration, over as many devices as the request has; on one device
    nothing is split.
    """
    _check_options(request)
    with _quiet():
        trainer = request.library("maxtext.trainers.pre_train.train", "maxtext")
        # There are as many as JAX is asked for before it counts them, as for a configuration.
        devices = jax_compat.new_mesh({"devices": request.devices}, explicit=False).devices
        config = _config(request)
        return _training_step(request, trainer, config, _mesh(request, config, devices))


def _check_options(request: ModelRequest) -> None:
    """Refuse what is for the configuration to say.

    Raises:
      InputsError: it is asked for beside the configuration.
    """
    beside = (
        (request.has_loss, "--loss", "the loss is MaxText's own"),
        (request.optimizer is not None, "--optimizer", "write opt_type= among the settings"),
        (
            bool(request.inputs.args or request.inputs.kwargs),
            "--arg, --kwarg and --inputs",
            "write per_device_batch_size= and max_target_length= among the settings",
        ),
        (
            request.mesh is not None,
            "--mesh",
            "write ici_fsdp_parallelism= and the like among the settings, and the devices as"
            " --on tpu:v5e:2x4",
        ),
    )
    for is_given, option, instead in beside:
        if is_given:
            raise InputsError(f"{request.name}: leave out {option}: {instead}")


def _config(request: ModelRequest) -> Any:
    """Return the configuration as MaxText completes it, for the devices of the request.

    Raises:
      TargetError: there is no such file or setting, or MaxText refuses a value.
    """
    given: Configuration = request.model.value
    for name in _DEVICES:
        if name in given.settings:
            raise TargetError(
                f"{request.name}: leave out {name}: write the devices as --on tpu:v5e:2x4"
            )
    pyconfig = request.library("maxtext.configs.pyconfig", "maxtext")
    folder = request.library("maxtext.utils.globals", "maxtext").MAXTEXT_CONFIGS_DIR
    ours: dict[str, Any] = {
        "base_output_directory": os.devnull,
        "hardware": request.platform,
        "internal_compile": True,
        "internal_compile_num_devices": request.devices,
        "jax_cache_dir": "",  # else what this process compiles is kept there
        "log_config": False,
        "skip_jax_distributed_system": True,
    }
    more = [f"{key}={value}" for key, value in ours.items() if key not in given.settings]
    # What others call writes the reason of a refusal to /dev/termination-log, and exits.
    read = getattr(pyconfig, "_initialize_pydantic", pyconfig.initialize_pydantic)
    try:
        words = ["", _file(given.file, folder), *given.words, *more]
        config = pyconfig.HyperParameters(read(words))
    except (TargetError, *NOT_CAUGHT):
        raise
    except BaseException as e:
        reason = e.__context__ if isinstance(e, SystemExit) and e.__context__ is not None else e
        unknown = _UNKNOWN.match(str(reason))
        if unknown is None:
            raise TargetError(f"MaxText refuses {request.name}: {summary(reason)}") from e
        known = pyconfig.types.MaxTextConfig.model_fields
        raise TargetError(
            f"MaxText has no setting {unknown[1]!r}{did_you_mean(unknown[1], known)}"
        ) from e
    for name in _OTHER_STEPS:
        if getattr(config, name, False) or getattr(config.lora, name, False):
            raise TargetError(f"{request.name}: {name} is for another training step than this one")
    if request.platform == "gpu" and config.attention in _TRITON:
        raise TargetError(
            f"{request.name}: MaxText traces attention={config.attention} for a GPU only where"
            " there is one: add attention=dot_product, or ask --on tpu:v5e"
        )
    return config


def _file(name: str, folder: str) -> str:
    """Return the path of a configuration, here or among those that come with MaxText.

    Raises:
      TargetError: there is none.
    """
    for path in (name, os.path.join(folder, name)):
        if os.path.isfile(path):
            return os.path.abspath(path)
    raise TargetError(f"there is no configuration {name}, here or in {folder}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what MaxText prints and logs when it is imported and configured."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _training_step(request: ModelRequest, trainer: Any, config: Any, mesh: Any) -> Adapted:
    """Return MaxText's step as a function of parameters, optimizer's state, other state and batch.

    MaxText has the first three as one value, whose parts a report could not tell apart.
    """
    nnx, spmd = request.library("flax.nnx", "flax"), request.library("flax.core.spmd", "flax")
    utils = request.library("maxtext.utils.maxtext_utils", "maxtext")
    sharding = request.library("maxtext.utils.sharding", "maxtext")
    jax = jax_compat.import_jax()
    rules = config.logical_axis_rules
    made = _maker(request, config, mesh)
    whole, _, split = utils.get_abstract_state(config, mesh, made, True)
    with spmd.logical_axis_rules(rules):
        graph, _ = nnx.split(nnx.eval_shape(made))
    of_params, split = sharding.maybe_update_params_sharding_with_opt(config, split)
    given = sharding.build_zero1_input_state_mesh_shardings(config, split, of_params)
    of_batch = sharding.get_input_data_sharding(config, mesh)
    batch = utils.get_shaped_batch(config, batch_sharding=of_batch)

    def parts(state: Any) -> tuple[Any, Any, Any]:
        params, others = nnx.split_state(state["model"], nnx.Param, ...)
        return params, state["optimizer"], others

    def train_step(params: Any, opt_state: Any, state: Any, batch: Any) -> Any:
        model = nnx.merge_state(params, state)
        whole = nnx.State({"model": model, "optimizer": opt_state})
        with spmd.logical_axis_rules(rules):
            # It cuts the arrays of the batch in place.
            new, metrics = trainer.train_step(graph, config, given, of_params, whole, dict(batch))
        return *parts(new), metrics

    options: dict[str, Any] = {"donate_argnums": (0, 1, 2)}
    inputs = (*parts(whole), batch)
    if mesh.size == 1:
        inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs)
    else:
        options |= {
            "in_shardings": (*parts(given), of_batch),
            "out_shardings": (*parts(given), None),
        }
    named = with_names(train_step, ["params", "opt_state", "state", "batch"])
    return Adapted(jax.jit(named, **options), Inputs(inputs, {}))


def _mesh(request: ModelRequest, config: Any, devices: Any) -> Any:
    """Return the mesh of a configuration, over an array of devices.

    Raises:
      TargetError: its axes do not fit the number of devices.
    """
    jax = jax_compat.import_jax()
    inside = _filled(config.ici_parallelism, devices.size // config.num_slices)
    between = _filled(config.dcn_parallelism, config.num_slices)
    sizes = [i * b for i, b in zip(inside, between, strict=True)]
    if math.prod(sizes) != devices.size:
        axes = zip(config.mesh_axes, sizes, strict=True)
        listed = ", ".join(f"{axis}={size}" for axis, size in axes if size != 1)
        raise TargetError(
            f"{request.name}: the mesh of these settings ({listed or 'one device'}) does not fit"
            f" --on, which has {devices.size}: write as many as in --on tpu:v5e:2x4"
        )
    kinds = jax.sharding.AxisType
    kind = kinds.Explicit if config.shard_mode.value == "explicit" else kinds.Auto
    mesh = jax.sharding.Mesh(
        devices.reshape(sizes), tuple(config.mesh_axes), axis_types=(kind,) * len(sizes)
    )
    return jax_compat.mesh_that_says(mesh, request.platform)


def _filled(sizes: Sequence[int], count: int) -> list[int]:
    """Return the sizes of axes, with what is left of a number of devices for one that is -1."""
    known = math.prod(size for size in sizes if size != -1)
    return [max(count // known, 1) if size == -1 else size for size in sizes]


def _maker(request: ModelRequest, config: Any, mesh: Any) -> Callable[[], Any]:
    """Return what makes the model with its optimizer, to be called abstractly."""
    nnx = request.library("flax.nnx", "flax")
    utils = request.library("maxtext.utils.maxtext_utils", "maxtext")
    creation = request.library("maxtext.utils.model_creation_utils", "maxtext")
    optimizers = request.library("maxtext.optimizers.optimizers", "maxtext")
    states = request.library("maxtext.common.train_state_nnx", "maxtext")
    make, model = creation.create_nnx_abstract_model(config, mesh)
    schedule = utils.create_learning_rate_schedule(config)
    optimizer = optimizers.get_optimizer(config, schedule, model, mesh=mesh)

    def made() -> Any:
        model = make()
        return states.TrainStateNNX(model, nnx.Optimizer(model, optimizer, wrt=nnx.Param))

    return made
