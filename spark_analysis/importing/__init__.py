"""The way from files to tables of operations, events and damage (`schema.py`, `history.py`).

Traces: `trace_reader.py` splits files, `trace_rows.py` decodes a split. Other histories: `formats.py` makes lines of a
text (`edn.py` reads EDN), and `lines.py` finds the completion of each invocation. From these pairs `json_rows.py` makes
rows for the log model, or `calls.py` calls for a search. `moments.py` finds times that cannot be true.
"""
