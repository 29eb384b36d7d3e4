"""Front-end for XLA: StableHLO and HLO text, and JAX functions lowered to it, as op graphs."""
