"""Sphinx configuration of the documentation."""

import sys
from pathlib import Path

from leadline import __version__

project = "Leadline"
author = "The Leadline maintainers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
html_theme = "furo"
exclude_patterns = ["_build"]
sys.path.insert(0, str(Path(__file__).parent))


def setup(app):
    """Insert the command-line reference into its page, and publish the JSON Schemas."""
    app.connect("source-read", _write_reference)
    app.connect("build-finished", _write_schemas)


def _write_schemas(app, exception):
    """Publish the JSON Schema of each document below schemas/."""
    from leadline.core.documents import to_json
    from leadline.interfaces.json_schemas import DOCUMENTS, json_schema

    if exception is None and app.builder.format == "html":
        for name in DOCUMENTS:
            file = Path(app.outdir, "schemas", f"{name.replace('/', '-')}.json")
            file.parent.mkdir(exist_ok=True)
            file.write_text(to_json(json_schema(name)) + "\n", encoding="utf-8")


def _write_reference(app, page, source):
    from cli_reference import reference

    if page == "reference/cli":
        source[0] = source[0].replace("<!-- reference -->", reference())
