"""The step, the loop, and a run that survives a crash."""
