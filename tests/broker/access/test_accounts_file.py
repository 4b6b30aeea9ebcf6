"""Changes of a file of accounts that a person has written: only the account that is meant changes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from broker.access.accounts import AccountEntry, AccountsError, parse
from broker.access.accounts_file import edit, with_account, without_account

FILE = """\
# Ours, ask the people of operations.
white_remote_addresses = ["10.0.0.*"]

[[accounts]]   # the shop
access_key = "service"
secret_key = '''
[[accounts]]
access_key = "operator" '''
topic_permissions = { orders = "PUB" }  # and nothing else

# Whoever is on call.
[[accounts]]
access_key = "operator"
secret_key = "another secret"
admin = true

[accounts.group_permissions]
"billing" = "DENY"
"""
OPERATOR = AccountEntry(access_key="operator", secret_key="another secret", admin=True)
NEW = AccountEntry(
    access_key='n\u00e4w "quoted"',
    secret_key="back\\slash \x7f\t\u2028",
    white_remote_address="10.1.0.5",
    topic_permissions={"a topic": "PUB|SUB"},
)


def test_an_account_is_added_behind_the_others() -> None:
    changed = with_account(FILE, "f", NEW)
    assert changed.startswith(FILE + "\n[[accounts]]\n")
    found = parse(changed, "f").by_access_key
    assert list(found) == ["service", "operator", NEW.access_key]
    assert found[NEW.access_key].secret_key == NEW.secret_key
    assert with_account("", "f", NEW).startswith("[[accounts]]\n")
    assert parse(with_account("# no end of line", "f", NEW), "f").by_access_key


def test_an_account_is_changed_in_its_place_with_all_that_belongs_to_it() -> None:
    changed = with_account(FILE, "f", msgspec.structs.replace(OPERATOR, admin=False))
    before, _, _ = FILE.partition('[[accounts]]\naccess_key = "operator"\nsecret_key = "another')
    assert changed == before + (
        '[[accounts]]\naccess_key = "operator"\nsecret_key = "another secret"\n'
        'default_topic_permission = "DENY"\ndefault_group_permission = "DENY"\n'
    )


def test_an_account_is_taken_out() -> None:
    changed = without_account(FILE, "f", "operator")
    assert FILE.startswith(changed)
    assert changed.endswith("# Whoever is on call.\n")
    assert list(parse(changed, "f").by_access_key) == ["service"]


@pytest.mark.parametrize(
    "text",
    [
        'accounts = [{ access_key = "operator", secret_key = "another secret" }]\n',
        FILE.replace('"operator"\nsecret_key = "another', '"service"\nsecret_key = "another'),
        FILE.replace("PUB", "ALL"),
        "accounts = 1",
        f"[[accounts]]\nadmin = {'9' * 5000}",
        f"[[accounts]]\nadmin = {'[' * 2000}",
    ],
)
def test_what_cannot_be_changed_safely_is_refused(text: str) -> None:
    with pytest.raises(AccountsError, match=r"^f: "):
        with_account(text, "f", OPERATOR)
    with pytest.raises(AccountsError, match=r"^f: "):
        with_account(text, "f", NEW)


def test_a_text_that_looks_like_an_account_within_a_secret_is_no_account() -> None:
    """What comes out is read as a server reads it: a change that went wrong is none."""
    with pytest.raises(AccountsError, match="by hand"):
        with_account(FILE, "f", AccountEntry(access_key="service", secret_key="new secret"))


def test_digests_tell_rights_from_secrets() -> None:
    entries = [NEW, OPERATOR]
    texts = [
        with_account(with_account("", "f", first), "f", second)
        for first, second in (
            entries,
            entries[::-1],
            [NEW, msgspec.structs.replace(OPERATOR, secret_key="a new secret")],
            [NEW, msgspec.structs.replace(OPERATOR, admin=False)],
        )
    ]
    one, turned, secret, rights = (parse(text, "f").digest for text in texts)
    assert one == turned, "the order means nothing"
    assert one.partition("-")[0] == secret.partition("-")[0]
    assert one != secret
    assert one.partition("-")[0] != rights.partition("-")[0]


def test_a_file_is_replaced_at_once_and_stays_its_owners(tmp_path: Path) -> None:
    path, link = tmp_path / "accounts.toml", tmp_path / "link"
    link.symlink_to(path)
    umask = os.umask(0)
    try:
        edit(link, lambda text: with_account(text, "f", OPERATOR))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        before = path.open("rb")
        with before:
            edit(link, lambda text: with_account(text, "f", NEW))
            assert b"quoted" not in before.read(), "who reads the old file reads all of it"
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "others had no right to it"
    assert link.is_symlink()

    def fails(text: str) -> str:
        raise AccountsError("no")

    with pytest.raises(AccountsError):
        edit(path, fails)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["accounts.toml", "link"]
    assert len(parse(path.read_text(), "f").by_access_key) == 2
