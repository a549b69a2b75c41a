"""The roles of clients: an agent requests decisions, a reviewer judges, an administrator changes the gate."""

from __future__ import annotations

AGENT, REVIEWER, ADMIN = ROLES = ("agent", "reviewer", "admin")
