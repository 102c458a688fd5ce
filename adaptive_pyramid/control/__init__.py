"""Online control: from block statistics to the next block's config. Knows nothing of models."""
