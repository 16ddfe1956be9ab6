"""Durations in words."""


def duration(seconds: float) -> str:
    """Return a duration as people say it.

    >>> duration(0.042), duration(4.4), duration(100), duration(3600 * 1.5), duration(86400 * 3)
    ('0.04 s', '4 s', '2 min', '1 h 30 min', '72 h')
    """
    if 0 < seconds < 1:
        return f"{seconds:.1g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 24 and rest else f"{hours} h"
