"""Messages on their way out: pulls (checked, filtered, answered or held), and queries by offset, time, key and id."""
