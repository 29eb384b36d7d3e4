"""A simulated scheduler: nodes, FIFO with EASY backfill, a manual clock, and the replay of traces."""
