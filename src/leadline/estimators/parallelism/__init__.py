"""Steps that are divided over several GPUs."""
