"""Questions and orders of an operator to a running cluster: the command line and the console are made of it.

Each module has typed async functions on an `AdminClient`, and the frozen dataclasses that they return. Nothing here
prints, and nothing waits for a person: who calls decides whether an order may go out. Questions are asked of each
broker group's leader, many at once but never more than `asking.AT_ONCE`.
"""
