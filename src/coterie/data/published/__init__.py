"""Published data sets: where they come from, how their files are read, and the pins that verify them."""
