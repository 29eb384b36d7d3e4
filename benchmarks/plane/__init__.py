"""The benches of the plane: what was promised of jobs while they run, measured."""
