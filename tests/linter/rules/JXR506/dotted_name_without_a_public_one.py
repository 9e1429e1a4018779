import jax._src.ad_checkpoint

name_p = jax._src.ad_checkpoint.name_p
