"""The meaning of a seed: the settings of a world and the schedule of its faults."""
