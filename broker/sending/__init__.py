"""The ways of messages in: sends, batches, sends that are repeated, messages that consumers send back, replies."""
