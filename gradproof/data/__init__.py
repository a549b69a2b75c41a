"""Reads tables, or generates synthetic data, and turns them into rows for a model."""
