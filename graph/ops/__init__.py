"""What operators mean: one file per family, one place per operator."""
