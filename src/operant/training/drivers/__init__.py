"""Drivers: on the host, on the device, several seeds at once."""
