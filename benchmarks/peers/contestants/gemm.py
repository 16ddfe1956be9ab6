"""What torch can do at best: ten float32 products of 2048 x 2048 on all cores. No model; its rounds are the peak."""

from __future__ import annotations

import numpy as np

from benchmarks.engine import products
from benchmarks.peers.protocol import serve

if __name__ == "__main__":
    serve(products(), lambda: np.zeros(0), "torch")
