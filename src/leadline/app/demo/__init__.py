"""The demo: predict, recommend and run three real training jobs on this machine."""
