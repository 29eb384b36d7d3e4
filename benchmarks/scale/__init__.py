"""Training on many GPUs: published steps, their fit, and what it reaches on sources that were left out."""
