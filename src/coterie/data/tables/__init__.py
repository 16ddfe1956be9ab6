"""A user's own files: read, checked and turned into arrays."""
