"""Trackers of experiments: TensorBoard, MLflow and Weights & Biases are told about runs."""
