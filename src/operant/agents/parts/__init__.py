"""What several algorithms share: actor-critics, Q-learning, off-policy learning, minibatches, sequences."""
