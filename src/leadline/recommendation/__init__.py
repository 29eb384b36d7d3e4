"""Choose what to ask for, under a deadline, a budget and a risk."""
