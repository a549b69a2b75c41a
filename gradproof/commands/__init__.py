"""One file per command; shared code is in options.py, terminal.py and usage.py. No package imports this one."""
