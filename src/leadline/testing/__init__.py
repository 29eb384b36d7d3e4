"""Test tools for plug-in authors: contract suites, fakes, and real services for the length of a test."""
