"""Turn the models of frameworks into functions with abstract inputs; nothing is allocated.

What is imported here is for packages with an adapter of their own, which they register as an entry
point of the group `jaxresid.targets`.
"""

from jaxresid.adapters.request import Adapted as Adapted
from jaxresid.adapters.request import ModelRequest as ModelRequest
from jaxresid.adapters.step import adapted as adapted
