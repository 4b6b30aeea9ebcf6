"""The reasons why a connection with TLS did not come about, in words for whoever asked for it."""

import ssl


class DistrustedError(ConnectionError):
    """The server has shown a certificate that is not good."""


def tls_failure(error: OSError) -> str:
    """Return what an error of a handshake means; "" for one that says so itself."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not good: {error.verify_message}"
    # What is not TLS ends the handshake, or answers it with something else.
    if isinstance(error, ssl.SSLEOFError) or getattr(error, "reason", "") == "WRONG_VERSION_NUMBER":
        return "the server has ended the TLS handshake: it may not speak TLS"
    return ""
