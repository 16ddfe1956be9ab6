"""A real federation: sites and server over Flower."""
