"""What a run leaves behind: metrics, records, comparisons, pictures."""
