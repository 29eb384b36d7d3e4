"""Sphinx configuration of the documentation."""

from leadline import __version__

project = "Leadline"
author = "The Leadline maintainers"
release = __version__
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
html_theme = "furo"
exclude_patterns = ["_build"]
nitpicky = True


def setup(app):
    """Insert the command-line reference into its page."""
    app.connect("source-read", _write_reference)


def _write_reference(app, page, source):
    from leadline.interfaces.cli.reference import reference

    if page == "reference/cli":
        source[0] = source[0].replace("<!-- reference -->", reference())
