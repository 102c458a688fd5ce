"""A study: what `python -m tuning.search` measures, chooses and writes."""
