import functools

import jax

cp = jax.checkpoint_policies
TABLE = {
    "dots": cp.dots_saveable,
    "named": functools.partial(cp.save_only_these_names, "out")(),
    "chosen": lambda names: cp.save_only_these_names(*names),
}
