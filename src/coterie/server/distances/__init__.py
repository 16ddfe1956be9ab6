"""Distances between clients: of their parameters and updates, and of losses under each other's models."""
