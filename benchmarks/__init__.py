"""Measurements: speed, attacks, faults that tests notice. A package, since others of this name are about."""
