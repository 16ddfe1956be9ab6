"""Draw the pictures of docs/partitions.md: ``python docs/pictures/draw.py`` (``natural`` needs hapt in the cache)."""

from __future__ import annotations

from pathlib import Path

import coterie as ct
from coterie.reporting.data_view import save_holdings

SHOWN = {
    "iid": "iid",
    "dirichlet": "dirichlet(0.1,10,groups=4)",
    "skewed": "skewed(2,4,14)",
    "classes": "classes(3,2,groups=5)",
    "shards": "shards(2)",
    "blocks": "blocks(overlap=true,balanced=false)",
    "table": "table(mnist)",
    "rotation": "rotation(0,90,180,270)",
    "swap": "swap(4)",
    "permute": "permute(4)",
    "quantity": "dirichlet(1)+quantity(1.5)",
    "few": "dirichlet(1)+few(40)",
    "blur": "iid+blur(0,0.7,1.4)",
    "noise": "iid+noise(0,0.5,1)",
    "stroke": "iid+stroke(-1,0,1)",
    "label-noise": "classes(2)+label-noise(0.3)",
}

if __name__ == "__main__":
    here = Path(__file__).parent
    digits = ct.load("digits")
    for name, text in SHOWN.items():
        save_holdings(here / f"partition-{name}.png", digits.partition(text, clients=20, seed=1))
    save_holdings(here / "partition-natural.png", ct.load("hapt").partition())
