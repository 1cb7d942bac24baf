"""What a program holds: agents, algorithm classes, the `Runner`, playing, and what is saved of them."""
