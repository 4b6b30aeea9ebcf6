"""What follows a commit: units of ConsumeQueues and keys of IndexFiles are made from the log, and looked over later.
`dispatch.py` is read first.
"""
