"""What a node is told: its settings (`tables`), where they are read (`reading`), what RocketMQ's keys mean to
Trivet, and which settings can be changed while the node runs (`live`).
"""
