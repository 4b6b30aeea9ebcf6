"""The bytes of messages, records and entries, without files: encoded, decoded, checked, one by one or as columns.
`record.py` and `layout.py` are read first.
"""
