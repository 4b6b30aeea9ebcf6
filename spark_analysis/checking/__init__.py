"""The way from a history to a verdict (docs/checker.md has the argument).

`queues` judges appends and reads, `registers.py` the committed offsets of consumer groups, `kafka` polls and
transactions, `replicas` the records of the replicas. Each rule is stated twice: in plain Python, to be read and for
short histories, and on DataFrames. `search.py` with `models.py` judges histories of other models, and
`unambiguous` those whose values do not repeat. `proofs.py` and
`examples.py` choose what proves a finding.

`check.py` is the public call for the log model, `keyed.py` for all other models, and `plain.py` the one without Spark.
"""
