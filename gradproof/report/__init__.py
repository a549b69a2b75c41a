"""One HTML writer for all commands: plain records in, one self-contained page out."""
