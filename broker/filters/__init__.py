"""Which messages a consumer wants, beyond what their tags tell."""
