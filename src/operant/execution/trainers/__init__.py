"""Algorithm."""
