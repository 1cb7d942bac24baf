"""The `Runner`: an agent in one environment, or in several at once."""
