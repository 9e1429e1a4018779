import jax
from torch.nn.functional import relu
from jax.ad_checkpoint import checkpoint_name as tag
from trainer.files import checkpoint_name


def block(w, x):
    return tag(relu(x @ w), "a"), checkpoint_name(jax.nn.relu(x @ w), "b")
