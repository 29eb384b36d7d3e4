"""Read a workload from options, files and scripts."""
