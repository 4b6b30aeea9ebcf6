"""A RocketMQ store becomes a backup of a Trivet group, of which stores are made (docs/migrating.md).

DLedger's entries are Trivet's entries but for a checksum that RocketMQ leaves 0, so each message keeps its bytes, its
place in the log, its offset and its ids. What RocketMQ keeps beside its log (topics, consumer groups, their offsets,
what waits) becomes the replicated state behind the last entry.

The source is only read, all of it before anything is written (`survey`): a file of it is believed where the entries
agree with it, and refused with its name and the byte where they do not.

A broker that runs is asked over the network instead (`taking_over`): its messages are put into a log that is made for
them (`pulled_log`), and surveyed there.
"""
