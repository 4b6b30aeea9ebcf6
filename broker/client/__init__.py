"""Trivet's client: producers, consumers and administration, written for any runtime and run on Trio.

| room | look here for |
|---|---|
| `errors.py`, `message.py` | what users meet everywhere: typed errors, messages sent and received |
| `checks.py` | what an option or argument may be |
| `transport/` | the runtime, connections, name servers and routes, heartbeats, calls that are repeated |
| `producing/` | sends and their attempts, outboxes, request-reply, transactions |
| `consuming/` | group consumers, listeners, order locks, plain readers, lookups |
| `admin.py` | topics, cluster and members, as operators see them |

Reading order: `transport/runtime` (what the client needs of the world), `transport/connection` and `pool` (calls),
`transport/routes` (where topics live), `transport/core` (what every client object has); then
`producing/producer`, `sender` and `one_send`, or `consuming/consumer`, `intake` and `queue_calls`.

`trivet` re-exports what users need; docs/client.md is their guide.
"""
