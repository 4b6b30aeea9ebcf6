"""Sending: single messages, batches, outboxes, requests that wait for a reply, transactions."""
