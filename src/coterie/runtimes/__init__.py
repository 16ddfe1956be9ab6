"""Ways to reach the clients: each implements the one port, ``Federation.ask``."""
