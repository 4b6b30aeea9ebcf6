"""Trivet's client: producers, consumers and administration, written for any runtime and run on Trio.

Reading order: `runtime` (what the client needs of the world), `connection` and `pool` (calls), `routes` (where topics
live), `core` (what every client object has), then `producer`, `queue_calls` and `intake`, `consumer`.

`trivet` re-exports what users need.
"""
