"""What the HTTP services share: limits, tokens, metrics, batching."""
