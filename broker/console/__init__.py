"""The console: a cluster in a browser.

`server` listens, `app` puts together what answers, `routes/` has what can be asked and ordered: each a typed function
on a `Seat` (the connection of one account), which knows nothing of HTTP. `assets/` is the page itself, served as it is.

Three things hold for every request, and stand in one place each: `guard` (whose request it is, and that it comes from
our own page), `parameters` (that it says what it may), `audit` (that a change is written down before it is made).
"""
