"""How messages get in: sends, batches, sends that are repeated, messages that consumers send back, replies."""
