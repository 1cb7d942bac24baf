"""Drivers, which move data between an agent and environments, and the training loop over them."""
