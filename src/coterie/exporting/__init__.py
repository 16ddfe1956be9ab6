"""Exported models: folders from which a model predicts elsewhere."""
