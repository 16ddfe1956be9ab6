"""Data that are in memory already: arrays and datasets, given by Python."""
