"""For those who write methods: a contract that every method should keep, and a federation behind bytes."""

from coterie.testing.contract import Checked, check_algorithm
from coterie.testing.loopback import Loopback, answer, sizes_of

__all__ = ["Checked", "Loopback", "answer", "check_algorithm", "sizes_of"]
