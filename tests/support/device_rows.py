"""Devices as the rows of a catalog file."""

import msgspec

from leadline.catalog.toml_files import DeviceRow, unit_conversion


def device_row(device):
    """Return a device as the plain values of a ``[[devices]]`` block, without absent numbers."""
    values = {"tflops": {dtype: rate / 1e12 for dtype, rate in device.peak_flops_per_s.items()}}
    for name in DeviceRow.__struct_fields__:
        noun_name, factor = unit_conversion(name)
        value = getattr(device, noun_name, None)
        if value is not None:
            values[name] = value if factor is None else value / factor
    return {name: value for name, value in msgspec.to_builtins(values).items() if value not in (None, "", [], {}, ())}
