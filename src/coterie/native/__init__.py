"""A compiled engine for networks that are plain chains of layers: PyTorch's numbers without its interpreter."""
