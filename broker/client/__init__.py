"""Trivet's client: producers, consumers and administration, written for any runtime and run on Trio.

Reading order: `runtime` (what the client needs of the world), `connection` and `pool` (calls), `routes` (where topics
live), `core` (what every client object has), then `producer` with `outbox` and `latency`, `queue_calls` and `intake`,
`pull_consumer` with `lookups`, `consumer` with `rebalance`, `positions`, `listening`, `order_locks` and
`ordered_listening`.

`trivet` re-exports what users need; docs/client.md is their guide.
"""
