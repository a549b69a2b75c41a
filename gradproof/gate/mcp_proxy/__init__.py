"""An MCP proxy that decides every tool call before the server sees it."""
