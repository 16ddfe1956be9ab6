"""Seeded, bounded fuzzing of all that a user, a file or another machine can say: `make fuzz`, `python -m fuzz -h`.

A case is made from (seed, kind, number) alone, so a fault is repeated by ``python -m fuzz --seed 1 --only words:137``.
Each runs in a process of its own, forked from one that has imported everything, in a fresh folder, with a limit on time
and on memory. ``judge`` says what a fault is; each of the other modules makes the cases of one kind.
"""
