"""JAX-native environments, compiled with the agent."""
