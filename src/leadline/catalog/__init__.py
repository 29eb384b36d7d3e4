"""The cyberinfrastructure configuration database: devices, systems, limits, prices and submit rules."""
