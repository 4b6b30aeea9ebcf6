"""The settings of a node.

`tables` has them, `loading` reads them from files, `rocketmq_keys` says what RocketMQ's keys mean to Trivet, and `live`
changes them while the node runs.
"""
