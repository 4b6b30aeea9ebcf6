"""Reading: members of consumer groups, listeners, plain readers, and single messages by id or key."""
