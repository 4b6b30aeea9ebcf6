"""The protocol between the nodes of a group: frames, headers, and how both ends of a link prove who they are."""
