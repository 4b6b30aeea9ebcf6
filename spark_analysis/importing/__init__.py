"""From files to tables of operations, events and damage (`schema.py`, `history.py`).

Traces: `trace_reader.py` splits files, `trace_rows.py` decodes a split. Other histories: `formats.py` makes lines of a
text (`edn.py` reads EDN), and `lines.py` finds the completion of each invocation; of both `json_rows.py` makes rows for
the log model, or `calls.py` a call for a search. `moments.py` tells times that cannot be true.
"""
