"""Chaos: the simulator's load and faults against real processes, and the same verdict at the end.

Read `schedule` (what a seed means), `proxy` (the network between the processes), `faults` (what is done to them),
`workload` (what clients do meanwhile), `judging` (whether what they were told is so) and `run` (the course of it all)
in this order.
"""
