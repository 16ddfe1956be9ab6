"""The models: networks as flat vectors."""
