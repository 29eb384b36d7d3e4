"""Sphinx settings of the documentation."""

from importlib.metadata import version as _version

project = "Leadline"
author = "The Leadline maintainers"
release = _version("leadline")
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build"]
nitpicky = True
