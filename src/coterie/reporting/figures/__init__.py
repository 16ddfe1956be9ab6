"""Figures as values: what they show, made from a run's records, and two ways to draw them."""
