"""The commit log: entries in mapped files, their index, flushes and recovery; damage that is found and repaired.
`entry_log.py` is read first.
"""
