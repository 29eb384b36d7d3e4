"""Run in the user's own environment, which has jax; needs nothing of Leadline but this folder and that of torch."""
