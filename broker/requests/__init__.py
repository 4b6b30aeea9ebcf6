"""Requests on their way through a server: connections and sessions, places and budgets that bound what waits, handlers
and routes, responses, and the reasons why a request fails.
"""
