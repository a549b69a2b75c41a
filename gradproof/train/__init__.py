"""The training step, the loop, and runs that survive a crash."""
