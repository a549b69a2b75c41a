"""Predictions: for a file, for JSON records, and as a service."""
