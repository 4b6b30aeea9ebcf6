"""What a run came to, for people: its report, what happened last in it, and a smaller plan that finds the same."""
