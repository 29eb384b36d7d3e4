"""Pipelines: stages of commands, the events that start them, and the tiers that they run on.

The runner stores events in a journal in the pipeline's folder and starts runs of stages as jobs of the user's plane.
"""
