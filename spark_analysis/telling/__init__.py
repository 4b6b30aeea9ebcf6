"""From a verdict to what a person reads: `stories` in sentences, `console.py` on a terminal, `report` as a page."""
