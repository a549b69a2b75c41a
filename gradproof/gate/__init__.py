"""A gate on agents' tool calls: a small transformer that reads a call and decides, and learns from corrections."""

MISSING_EXTRA = "the gate needs its extra: pip install 'gradproof[gate]'"
