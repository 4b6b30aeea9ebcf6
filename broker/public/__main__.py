"""``python -m trivet`` with the wheel, in which `trivet` is a package; in a checkout that runs trivet.py."""

from broker.tools.cli import main

main()
