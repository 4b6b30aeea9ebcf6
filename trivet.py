"""Trivet's public face: ``import trivet`` gives the client, ``python -m trivet`` the command."""
