"""The client's work, for one client or many at once."""
