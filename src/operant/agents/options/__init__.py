"""The algorithms' options, one module each. Imports no JAX: help reads them."""
