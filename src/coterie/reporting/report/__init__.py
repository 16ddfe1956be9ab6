"""The report of a run or of a comparison: one page that needs no other file."""
