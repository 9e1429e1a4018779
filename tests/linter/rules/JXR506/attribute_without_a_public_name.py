from jax._src import ad_checkpoint

primitive = ad_checkpoint.remat_p
