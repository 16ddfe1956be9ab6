"""A paper's own settings in one word: ``--as thesis``, or ``as = "thesis"`` in an experiment file.

What a paper says is the default, and whatever the user says stays. What a paper does not say is not here, and stays as
it is with us. To add a value, enter it in ``papers``; nothing else knows of papers.
"""

from coterie.presets.apply import AS, arguments_of, expand, told
from coterie.presets.papers import papers
from coterie.presets.preset import Argument, Preset, Said

__all__ = ["AS", "Argument", "Preset", "Said", "arguments_of", "expand", "papers", "told"]
