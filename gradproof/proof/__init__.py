"""Witnesses, and the judging of Subjects. Knows contracts and ops, no model; only its command does."""
