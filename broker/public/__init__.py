"""The names that are imported right below ``trivet``: ``trivet.client`` is the module `client` here.

The modules of this folder only hand on names; what they stand for lives in the rooms below. In a checkout trivet.py has
this folder as its path; the wheel has the modules in ``trivet`` itself (`broker/tools/wheel.py`).
"""
