"""Test tools for plug-in authors: contract suites."""
