"""A simulated scheduler: nodes, FIFO with EASY backfill, and a manual clock."""
