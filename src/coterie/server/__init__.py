"""The server: one loop, and the parts that algorithms are composed of."""
