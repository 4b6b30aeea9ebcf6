"""Messages that wait for a time: the levels of RocketMQ 4 (`delays`), and a time of their own (`timers`)."""
