"""Measure the interfaces: the chat's understanding, the page under load, the weight of its first paint."""
