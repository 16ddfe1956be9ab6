"""Experiments: settings, one run with its records and its folder, sweeps, tuning, placement of newcomers."""
