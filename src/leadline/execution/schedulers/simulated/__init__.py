"""A scheduler that is only computed: nodes, FIFO with EASY backfill, a hand-turned clock, and the replay of traces."""
