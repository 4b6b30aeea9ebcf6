"""The machines of a world: hosts with their clocks, disks and processes, and the network between them."""
