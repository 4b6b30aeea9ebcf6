"""Decisions without a search, for histories in which every value is put in at most once.

If it is known which operation put in what another one took out, linearizability of queues, stacks, priority queues,
sets and registers is no longer a question of trying: `fifo.py`, `stack.py`, `priority.py`, `elements.py` and
`register.py` decide it in O(n log n), unknown outcomes included, and give an order or the operations that exclude
one. docs/checker.md has the arguments. Where values repeat in a way that matters, or where unknown outcomes leave a
choice that no rule here settles, they return None and the search goes on.

Sources: Gibbons and Korach, "Testing Shared Memories" (1997); Bouajjani, Emmi, Enea and Hamza, "On Reducing
Linearizability to State Reachability" (2015); Lee and Mathur, "Efficient Decrease-and-Conquer Linearizability
Monitoring" (2025).
"""
