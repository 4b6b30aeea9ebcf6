"""The result of a run for people: a report, the last events, and a smaller plan with the same finding."""
