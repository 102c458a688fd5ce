"""The tests, and what they share with `benchmarks`: import it as `tests.tiny` from the repository's root."""
