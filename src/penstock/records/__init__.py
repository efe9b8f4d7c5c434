"""Record batches (magic 2): headers, checks, look-ups. Pure."""
