"""Partitions: which rows of a data set each client is handed, and how it sees them."""
