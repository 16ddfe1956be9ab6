"""What a measurement says of the machine it was made on."""

from __future__ import annotations

import platform
from pathlib import Path

from coterie.engine.plan import available_cores


def describe() -> str:
    """Return the processor's name and the number of cores."""
    return f"{cpu_name()}, {available_cores()} cores"


def cpu_name() -> str:
    """Return what the processor calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
