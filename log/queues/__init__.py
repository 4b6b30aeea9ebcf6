"""ConsumeQueues, which say where a queue's messages are in the log, and the order of timed messages by time."""
