"""Does MoE earn its keep on this data, at the same budget? Matched budgets, the runs, the statistics."""
