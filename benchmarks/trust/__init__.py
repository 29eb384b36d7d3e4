"""Claims about trust: wrong answers, harm done by a trace, and hostile input."""
