"""A chat that answers from the tools, with a language model or without one."""
