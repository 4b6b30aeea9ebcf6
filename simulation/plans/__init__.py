"""What a seed means: the settings of a world and the schedule of its faults."""
