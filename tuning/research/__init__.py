"""Descriptions of what traces and papers say: they tune nothing."""
