"""Fast ways to run an op, each admitted by the op's contract before it runs."""
