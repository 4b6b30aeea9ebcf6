"""The demonstration: real text through a group whose leader is killed, and a verdict on what the clients saw."""
