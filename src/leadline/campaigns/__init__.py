"""Campaigns: adaptive choice and execution of training runs for a model of an application."""
