"""The roles of those who ask the service: an agent decides, a reviewer judges, an administrator changes the gate."""

from __future__ import annotations

AGENT, REVIEWER, ADMIN = ROLES = ("agent", "reviewer", "admin")
