# jaxresid: file-ignore[discarded-checkpoint]  # !
import jax
