"""Peaks of GPU memory that the makers of segmenters and detectors measured in training, beside what is predicted."""
