"""One program for each contestant; all but the first two run without coterie."""
