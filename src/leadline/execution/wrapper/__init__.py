"""Run one command as a child, measure it, hold it to its limits, and write down what happened."""
