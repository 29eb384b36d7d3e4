"""Published peaks of GPU memory of segmenters and detectors in training, compared with predictions."""
