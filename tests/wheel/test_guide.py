"""docs/testing.md: each of its examples is a file of tests that pytest runs, with the installed wheel."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.wheel.conftest import ROOT, Installed

pytestmark = pytest.mark.slow

EXAMPLES = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "testing.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: re.findall(r"def (test_\w+)", example)[0])
def test_the_example_passes(installed: Installed, example: str) -> None:
    if "import django" in example and importlib.util.find_spec("django") is None:
        pytest.skip("Django is not installed")
    (installed.hostile / "test_example.py").write_text(example)
    assert "1 passed" in installed.run(
        installed.python, "-m", "pytest", "-p", "no:cacheprovider", "test_example.py"
    )


def test_each_test_or_all_have_a_broker_of_their_own(installed: Installed) -> None:
    """As the settings say, with as many nodes."""
    (installed.hostile / "test_settings.py").write_text(
        """if True:
        used = set()

        def test_one(trivet_broker):
            trivet_broker.kill_leader()
            used.add(trivet_broker)

        def test_other(trivet_broker):
            assert trivet_broker.wait_leader() in ("n0", "n1", "n2")
            used.add(trivet_broker)
            print("brokers:", len(used))
        """
    )
    for scope, brokers in (("function", 2), ("session", 1)):
        options = [f"--override-ini=trivet_broker_scope={scope}", "--override-ini=trivet_broker_nodes=3"]
        told = installed.run(installed.python, "-m", "pytest", "-s", *options, "test_settings.py")
        assert f"brokers: {brokers}\n" in told
