"""Units of ConsumeQueues and keys of IndexFiles: how they are made from the log, behind a commit, and looked over
later. `dispatch.py` is read first.
"""
