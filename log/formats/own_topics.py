"""The topics that a store knows by name, and the delays of one of them; what others say of these needs no log."""

INTERNAL_TOPIC = b"TRIVET_SYS_RAFT_LOG"
"""Records of this topic are commands and no-ops of the group: never in a ConsumeQueue or an IndexFile."""

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"

TIMER_TOPIC = b"rmq_sys_wheel_timer"
"""Messages for a time of their own, all in queue 0; the unit of each holds the time of its TIMER_OUT_MS."""

DECIDING_TOPICS = frozenset((b"RMQ_SYS_TRANS_OP_HALF_TOPIC", b"TRANS_CHECK_MAX_TIME_TOPIC"))
"""Records of these topics say what became of a transaction, as committed messages do (sysFlag 8)."""

DEFAULT_DELAY_LEVELS_MS = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""RocketMQ's default `messageDelayLevel`; level n is element n - 1."""
