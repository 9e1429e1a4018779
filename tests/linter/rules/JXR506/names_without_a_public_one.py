from jax._src.ad_checkpoint import saved_residuals, remat_p
