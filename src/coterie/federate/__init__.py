"""A real federation on Flower: what a server orders, what a site answers and may refuse, and how both are set up."""
