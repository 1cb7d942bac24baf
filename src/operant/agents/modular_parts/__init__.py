"""What the modular agent is assembled from: objectives, batches, estimates of returns, gradient steps."""
