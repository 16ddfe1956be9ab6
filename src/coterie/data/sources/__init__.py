"""Published data sets: where they come from and how they become arrays."""
