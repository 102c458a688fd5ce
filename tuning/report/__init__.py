"""The report of a study: `python -m tuning.report`."""
