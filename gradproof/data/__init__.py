"""From a table, or from nothing at all, to rows that a model can read."""
