"""The time of a training or inference step from its op graph."""
