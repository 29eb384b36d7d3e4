"""Front-ends that turn a workload into an op graph."""
