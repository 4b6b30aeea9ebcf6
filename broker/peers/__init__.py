"""What the nodes of a group say to each other: frames, headers, and how both ends of a link prove who they are."""
