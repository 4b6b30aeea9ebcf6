"""A whole cluster seen from outside: its state over the network, its processes, and its files.

The commands ``cluster``, ``status``, ``demo``, ``bench`` and ``chaos`` and the tests of real processes stand on this
package. It knows a node only as others do: by its address, its process id and its directory.
"""
