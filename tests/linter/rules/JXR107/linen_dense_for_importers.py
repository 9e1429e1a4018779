import flax.linen as nn

Dense = nn.remat(nn.Dense)  # for whoever imports it, with a dtype perhaps
