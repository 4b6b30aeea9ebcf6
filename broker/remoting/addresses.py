"""Addresses as settings, routes and messages write them: ``host:port``, an IPv6 host in brackets.

An IPv6 host without brackets is refused: in ``fe80::1:9876`` the last part may be a port or a part of the host.
"""


def split_address(address: str) -> tuple[str, int]:
    """The host, without brackets, and the port (0 to 65535). Raises ValueError that says what is wrong."""
    host, colon, port_text = address.rpartition(":")
    if not colon or not host:
        raise ValueError("needs the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not host:
            raise ValueError("needs the form host:port")
    elif "/" in address:
        raise ValueError("needs the form host:port")
    elif ":" in host:
        raise ValueError("an IPv6 host goes in brackets: [::1]:10911")
    if not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise ValueError("the port is a number from 0 to 65535")
    return host, int(port_text)


def join_address(host: str, port: int) -> str:
    """The address that `split_address` takes apart into this host and port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
