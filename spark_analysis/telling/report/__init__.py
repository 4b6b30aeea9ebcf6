"""The report: one HTML page without scripts or network, the answer in words first.

`data.py` brings a bounded part of the history to the driver; from there on everything is a pure function:
:mod:`spark_analysis.telling.stories` tells the findings, `proof_figures.py` and `run_figure.py` draw them, and
`page.py` puts the page together. So the page shows the same everywhere and for ever, and has about one size.
"""

from spark_analysis.telling.report.page import render, write_report

__all__ = ["render", "write_report"]
