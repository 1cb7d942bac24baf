"""The classes of the algorithms (`PPO`, `DQN`, ...): an algorithm with the environments that it trains in."""
