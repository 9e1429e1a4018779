"""The training step of a small MaxText model as its train_compile makes it, without an adapter."""

import os

import jax
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules
from maxtext.common.train_state_nnx import TrainStateNNX
from maxtext.configs import pyconfig
from maxtext.optimizers.optimizers import get_optimizer
from maxtext.trainers.pre_train import train
from maxtext.utils import maxtext_utils, model_creation_utils
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR

SETTINGS = (
    "base_num_decoder_layers=2 base_emb_dim=64 base_mlp_dim=128 base_num_query_heads=4"
    " base_num_kv_heads=4 head_dim=16 vocab_size=512 max_target_length=128"
    " per_device_batch_size=2 attention=dot_product"
)


def _made():
    own = ("hardware=gpu", "skip_jax_distributed_system=True", "log_config=False")
    file = os.path.join(MAXTEXT_CONFIGS_DIR, "base.yml")
    config = pyconfig.initialize(["", file, *SETTINGS.split(), *own])
    sizes = [1] * len(config.mesh_axes)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(sizes), config.mesh_axes)
    make, model = model_creation_utils.create_nnx_abstract_model(config, mesh)
    schedule = maxtext_utils.create_learning_rate_schedule(config)
    optimizer = get_optimizer(config, schedule, model, mesh=mesh)

    def state():
        model = make()
        return TrainStateNNX(model, nnx.Optimizer(model, optimizer, wrt=nnx.Param))

    with logical_axis_rules(config.logical_axis_rules):
        graph, arrays = nnx.split(nnx.eval_shape(state))
    return config, graph, arrays


CONFIG, GRAPH, STATE = _made()


def _step(state, batch):
    with logical_axis_rules(CONFIG.logical_axis_rules):
        return train.train_step(GRAPH, CONFIG, None, None, state, dict(batch))


train_step = jax.jit(_step, donate_argnums=0)


def train_step_inputs():
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), STATE)
    return state, maxtext_utils.get_shaped_batch(CONFIG)
