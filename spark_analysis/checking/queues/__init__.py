"""The log model: is there one order of the appends of a queue that all its readers can have seen?

`reference.py` states the rules in plain Python, `log_model.py` the same on DataFrames. What was seen and never
acknowledged goes to `unknown_appends.py`, from DataFrames by way of `explain.py` and `attempt_queues.py`.
"""
