"""A broker node as clients see it, whatever its role: where a request is handled, forwarded, held or given back;
which clients there are; what the name servers are told.
"""
