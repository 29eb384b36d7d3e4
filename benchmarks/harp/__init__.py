"""Configurations never run, predicted from campaigns."""
