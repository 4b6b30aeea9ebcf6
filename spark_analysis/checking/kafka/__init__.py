"""Anomalies that Jepsen's Kafka workload looks for besides: polls and sends that skip or go back, circles of
transactions."""
