"""Estimates of deep-learning jobs against measured ones: of devices, model families and scales that were held out."""
