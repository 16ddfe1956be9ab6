"""A page that shows a run while it goes on: what changed in its folder, sent to browsers on this machine."""
