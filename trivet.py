"""Trivet's public face: ``import trivet`` gives the client, ``python -m trivet`` the command."""

if __name__ == "__main__":  # first, so that the command does not wait for the client to be imported
    from broker.cli import main

    main()
