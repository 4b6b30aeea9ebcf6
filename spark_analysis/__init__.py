"""PySpark over traces: was what the clients saw linearizable, and did the replicas keep Raft's promises?

The rooms, in the order in which a history goes through them; each imports only those before it:

- `importing`: traces, JSON lines, EDN and Jepsen's logs become operations and events.
- `checking`: operations and events become a verdict, with the operations that prove it.
- `telling`: a verdict becomes sentences, figures, a page.

`main.py` is ``trivet analyze``, which goes this way once for each history; `follow.py` judges one that grows, and
`streaming.py` one that Spark streams. `session.py` starts Spark; `source.py` gives Spark the trace format under a name.
"""
