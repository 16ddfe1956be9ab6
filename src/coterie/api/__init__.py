"""The library as Python sees it: run, compare, tune and load experiments on values instead of settings."""
