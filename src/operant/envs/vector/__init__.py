"""Several environments stepped in one call."""
