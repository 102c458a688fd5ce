"""Scripts that measure this project; run them from the repository's root: `python -m benchmarks.policy_lab --help`."""
