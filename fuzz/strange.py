"""Values that nobody expects, and small damage to texts and bytes."""

from __future__ import annotations

from random import Random

NUMBERS = (
    *("0", "-1", "-0", "1.5", "1e308", "-1e308", "1e-320", "nan", "inf", "-inf", "1e400", "1_0", "0x10", " 7 ", "١٢"),
    *("1" + "0" * 30, str(2**63), str(-(2**63)), str(2**31), str(2**64), "9" * 5000),
)
"""Numbers beyond limits, or what may be taken for a number."""

TEXTS = (
    *("", " ", "\t", "a\nb", "\r", "\x1b[31mred", "\x1b]0;title\x07", "\x07", "\x7f", "\x85", "\u2028", "\u202e"),
    *("[/x]", "[bold]", "[red]x", "[link=x]", "ü", "日本語", "🙂", "e\u0301", "\ud800", "\udcff", "\ufeff"),
    *("true", "none", "None", "null", "auto", "--help", "-", "--", "%s%n", "{0}", "$HOME", "~", "'", '"', "`x`"),
    *("..", "/", "/dev/null", "/proc/self/mem", ".", "C:\\x", "a/../..", "a:b", ":", "os:system", "x" * 20_000),
)
"""Words that a terminal, a path, a format or a markup language takes for something else."""

PIECES = (
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "+",
    ",",
    "=",
    "((",
    "))",
    "()",
    "+,",
    "==",
    "..",
    "@",
    "'",
    '"',
    "\\",
    ";",
    "#",
)
"""What unbalances a text of calls."""


def text(rng: Random) -> str:
    """A strange word."""
    return rng.choice(rng.choice((NUMBERS, TEXTS)))


def damaged_text(rng: Random, good: str) -> str:
    """A text with one piece put in, taken out, doubled or replaced."""
    begin = rng.randrange(len(good) + 1)
    end = min(len(good), begin + rng.choice((0, 0, 1, 1, 2, 5)))
    piece = rng.choice(("", rng.choice(PIECES), text(rng), good[begin:end] * 2, good))
    return good[:begin] + piece + good[end:]


def damaged_bytes(rng: Random, good: bytes) -> bytes:
    """Bytes with bits turned round, a part lost, doubled or replaced."""
    if not good:
        return rng.randbytes(rng.randrange(1, 40))
    begin = rng.randrange(len(good))
    end = min(len(good), begin + rng.choice((1, 2, 8, 100, len(good))))
    match rng.randrange(6):
        case 0:
            return good[:begin] + bytes([good[begin] ^ (1 << rng.randrange(8))]) + good[begin + 1 :]
        case 1:
            return good[:begin]
        case 2:
            return good[:begin] + good[end:]
        case 3:
            return good[:end] + good[begin:]
        case 4:
            return good[:begin] + rng.randbytes(end - begin) + good[end:]
    return good + rng.randbytes(rng.randrange(1, 100))


def value(rng: Random, depth: int = 2) -> object:
    """A strange value of JSON or TOML."""
    simple = (0, -1, 1, 2**31, 2**63 - 1, 10**30, 1.5, -1e308, 1e308, 1e-320, True, False)
    match rng.randrange(6 if depth else 4):
        case 0 | 1:
            return rng.choice(simple)
        case 2:
            return text(rng)
        case 3:
            return float(rng.choice(("nan", "inf", "-inf")))
        case 4:
            return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {text(rng): value(rng, depth - 1) for _ in range(rng.randrange(3))}


def damaged_value(rng: Random, good: object) -> object:
    """A value of JSON or TOML of which one place, at any depth, is strange."""
    if isinstance(good, dict) and good and rng.random() < 0.9:
        key = rng.choice(sorted(good, key=str))
        match rng.randrange(6):
            case 0:
                return {k: v for k, v in good.items() if k != key}
            case 1:
                return {**good, text(rng): value(rng)}
        return {**good, key: damaged_value(rng, good[key])}
    if isinstance(good, list | tuple) and good and rng.random() < 0.8:
        place, many = rng.randrange(len(good)), list(good)
        match rng.randrange(5):
            case 0:
                return many[:place] + many[place + 1 :]
            case 1:
                return many * 2
        return [*many[:place], damaged_value(rng, many[place]), *many[place + 1 :]]
    return other(rng, good) if rng.random() < 0.4 else value(rng)


def other(rng: Random, good: object) -> object:
    """A value of the same type that is not strange, so that what lies behind the first check is reached."""
    if isinstance(good, bool):
        return not good
    if isinstance(good, int):
        return rng.choice((1, 2, 3, 7))
    if isinstance(good, float):
        return rng.choice((0.1, 0.5, 0.9, 1.0))
    return rng.choice(("iid", "ifca", "median", "adam", "head", "train", "cpu", f"{good} ", f"{good}{good}"))
