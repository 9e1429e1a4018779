"""The zoo as data: programs around released libraries, and the environments that they run in.

Pins are what was resolved for the oldest JAX that jaxresid takes and for the newest that there was.
"""

from __future__ import annotations

from dataclasses import dataclass

_OLDEST_JAX, _NEWEST_JAX = "0.7.0", "0.12.0.1"


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own; libraries that take one JAX share it.

    Attributes:
      no_deps: requirements that are installed without what they ask for: what of it is needed is
        among `requirements`, the rest is data pipelines.
    """

    name: str
    jax: str
    requirements: tuple[str, ...]
    no_deps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """One program and what it is.

    Attributes:
      library: as it is installed.
      program, function: `tests/zoo/programs/<program>.py:<function>`.
      is_step: a training step; else a function to differentiate. Auto mode has to find out.
      trees, objective: names in the program, for the oracles (see `tests/zoo/probe.py`).
      options: of every command.
      oldest, newest: where it runs; None where it does not, for the reason in `note`.
    """

    library: str
    program: str
    function: str
    is_step: bool
    trees: str | None = None
    objective: str | None = None
    mode: str = "auto"
    options: tuple[str, ...] = ()
    oldest: str | None = "oldest"
    newest: str | None = "newest"
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.program}:{self.function}"

    @property
    def environments(self) -> tuple[str, ...]:
        return tuple(name for name in (self.oldest, self.newest) if name is not None)


ENVIRONMENTS = (
    Environment(
        "oldest",
        _OLDEST_JAX,
        (
            "flax==0.11.2",
            "equinox==0.13.0",
            "optax==0.2.8",
            "dm-haiku==0.0.17",
            "diffrax==0.7.1",
            "numpyro==0.22.0",
            "jaxopt==0.8.3",
            "penzai==0.2.5",
            "ott-jax==0.6.0",
            "keras==3.15.1",
            "jax-md==0.2.29",
            "distrax==0.1.9",
            "blackjax==1.3",
            "flowjax==19.1.2",
            "netket==3.23.0",
            "transformers==4.48.3",
            "brax==0.14.2",
            "jraph==0.0.6.dev0",
            "optimistix==0.0.10",
            "e3nn-jax==0.21.0",
        ),
    ),
    Environment(
        "newest",
        _NEWEST_JAX,
        (
            "flax==0.12.12",
            "equinox==0.13.8",
            "optax==0.2.8",
            "dm-haiku==0.0.17",
            "diffrax==0.7.2",
            "numpyro==0.22.0",
            "jaxopt==0.8.5",
            "penzai==0.2.5",
            "ott-jax==0.6.0",
            "keras==3.15.1",
            "jax-md==0.2.29",
            "distrax==0.1.9",
            "blackjax==1.7.1",
            "flowjax==19.1.2",
            "netket==3.23.0",
            "transformers==4.48.3",
            "brax==0.14.2",
            "gpjax==0.13.6",
            "jraph==0.0.6.dev0",
            "optimistix==0.1.0",
            "e3nn-jax==0.21.0",
            "clu",
        ),
        # tunix asks for TensorFlow's data sets, and more that its models do not import.
        no_deps=(
            "google-tunix==0.1.7",
            "google-metrax",
            "qwix",
            "omegaconf",
            "perfetto",
            "pylatexenc",
            "tenacity",
            "python-dotenv",
            "sentencepiece",
            "importlib_resources",
            "antlr4-python3-runtime==4.9.3",
            "kagglehub",
            "hf_transfer",
        ),
    ),
    # Its loss has masks of floats, which newer JAXes refuse.
    Environment(
        "levanter",
        "0.7.2",
        ("haliax==1.4.dev453", "levanter==1.2.dev1644", "GitPython", "chex", "optax==0.2.8"),
    ),
    # For Python 3.12 or newer. What its trainer imports; its extras ask for data pipelines,
    # TensorFlow and clouds as well.
    Environment(
        "maxtext",
        _NEWEST_JAX,
        (
            "flax==0.12.12",
            "optax==0.2.8",
            "omegaconf",
            "pydantic",
            "jinja2",
            "pyyaml",
            "pathwaysutils",
            "fastapi",
            "aqtp",
            "qwix",
            "tokamax",
            "huggingface-hub",
            "transformers",
            "grain",
            "drjax",
            "pillow",
            "tiktoken",
            "sentencepiece",
            "sympy",
        ),
        no_deps=("maxtext==0.2.5",),
    ),
)

# What no environment has, and why.
MISSING = {
    "haliax==1.3": "imports jax._src.tree_util.BuiltInKeyEntry, which no JAX here has",
    "levanter==1.1": "needs haliax 1.3, pydantic<2 and ray",
}


def _step(library: str, program: str, function: str, trees="trees", objective="objective", **more):
    return Target(library, program, function, True, trees, objective, **more)


def _function(library: str, program: str, function: str = "loss", **more):
    return Target(library, program, function, False, **more)


TARGETS = (
    _step("flax", "linen_encoder", "train_step"),
    _function("flax", "linen_encoder"),
    _step("flax", "linen_batchnorm", "train_step"),
    _function("flax", "linen_batchnorm", options=("--has-aux",)),
    _step("flax", "nnx_decoder", "train_step"),
    _step("flax", "nnx_decoder", "functional_step", trees="functional_trees"),
    _function("flax", "nnx_decoder"),
    _step("equinox", "equinox_mixer", "train_step"),
    _function("equinox", "equinox_mixer"),
    _step(
        "optax",
        "optax_accumulation",
        "accumulating_step",
        "accumulating_trees",
        "accumulating_objective",
    ),
    _step("optax", "optax_accumulation", "multi_step", "multi_trees", "multi_objective"),
    _step("dm-haiku", "haiku_lm", "update"),
    _function("dm-haiku", "haiku_lm"),
    _function("dm-haiku", "haiku_lstm"),
    _step("keras", "keras_classifier", "train_step"),
    _step("transformers", "transformers_bert", "train_step"),
    _function("transformers", "transformers_gpt2"),
    _step("diffrax", "diffrax_ode", "make_step"),
    _step("numpyro", "numpyro_vae", "step", objective=None),
    _step("brax", "brax_ppo", "minibatch_step"),
    _function("jaxopt", "jaxopt_hyper", "unrolled"),
    _function("jaxopt", "jaxopt_hyper", "implicit"),
    # Its inputs keep the model in a cache, which tracers would leak into.
    _function("penzai", "penzai_llama", options=("--concrete-inputs",)),
    _function("ott-jax", "ott_sinkhorn", "unrolled"),
    _function("ott-jax", "ott_sinkhorn", "implicit"),
    _function("netket", "netket_vmc"),
    _function("jax-md", "jaxmd_rollout", "simulation"),
    _step("distrax", "distrax_flow", "update"),
    _step("blackjax", "blackjax_meanfield", "step", objective=None),
    # Its arrays reach functions that the model holds.
    _step("flowjax", "flowjax_coupling", "step", options=("--concrete-inputs",)),
    _function("optimistix", "optimistix_equilibrium"),
    _function("e3nn-jax", "e3nn_message", mode="loss"),
    _function(
        "gpjax", "gpjax_regression", oldest=None, note="0.13 needs flax 0.12, 1.0 is another"
    ),
    _step("google-tunix", "tunix_llama", "train_step", oldest=None, note="needs flax 0.12"),
    _function("jraph", "jraph_network"),
)
