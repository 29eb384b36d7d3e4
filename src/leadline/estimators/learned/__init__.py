"""Laws of kernels and of whole steps, learned from what was measured."""
