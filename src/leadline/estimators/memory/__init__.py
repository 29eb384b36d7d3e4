"""GPU and host memory of a step."""
