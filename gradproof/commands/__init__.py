"""One file a command, and what they share: options.py, terminal.py. No package imports this one."""
