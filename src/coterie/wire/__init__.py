"""Messages between server and sites: packed, sealed, asked for and answered."""
