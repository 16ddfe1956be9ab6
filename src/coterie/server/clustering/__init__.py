"""Clustering: methods, their number of clusters, and advice."""
