"""What every command shares: reading options, one-sentence errors, notes and progress bars on stderr."""
