"""Access control: accounts and their permissions (docs/security.md).

`accounts` reads the file, `needs` knows what each request asks for, `control` decides.
"""
