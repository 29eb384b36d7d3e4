"""Small models predicted from the calibration, then measured on this machine."""
