"""The way from a verdict to its reader: `stories` in sentences, `console.py` on a terminal, `report` as a page."""
