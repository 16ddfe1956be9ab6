"""Messages between server and sites: packed, sealed, sent and checked."""
