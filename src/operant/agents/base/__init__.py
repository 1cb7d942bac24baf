"""What every algorithm stands on: the protocol, the learner, compiled calls, specifications."""
