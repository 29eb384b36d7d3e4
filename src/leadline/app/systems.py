"""The verbs ``systems`` and ``devices``: what the catalog holds, and whether it can be true."""

from datetime import date
from pathlib import Path

from leadline.catalog.files import read_devices, read_site
from leadline.catalog.validate import Finding, validate
from leadline.core.documents import parse_toml, why_unread
from leadline.core.errors import InvalidInput
from leadline.core.ports import Catalog


def check_catalog(catalog: Catalog, file: Path | None = None, *, today: date | None = None) -> list[Finding]:
    """Return what is wrong with the whole catalog, or with one file of devices or of a site.

    A site's file may name any device of the catalog.

    Raises:
        InvalidInput: the file cannot be read as either.
    """
    day = today or date.today()  # noqa: DTZ011 - a price's age counts in years
    if file is None:
        return validate(catalog.devices(), catalog.systems(), day)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {why_unread(error)}") from error
    if "devices" in parse_toml(text, what=str(file)):
        return validate(read_devices(text, str(file)), [], day)
    shipped = {device.name for device in catalog.devices()}
    found = validate(catalog.devices(), read_site(text, str(file)), day)
    return [finding for finding in found if finding.entry not in shipped]
