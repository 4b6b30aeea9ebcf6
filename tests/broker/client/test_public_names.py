"""What a program needs of the client is imported from `trivet` itself."""

from __future__ import annotations

import inspect

import trivet
from broker.client import errors
from broker.client.producing.portion import Portion
from broker.client.transport.credentials import Credentials


def test_each_error_and_the_class_of_each_option_is_a_name_of_the_package() -> None:
    raised = {
        name
        for name, one in inspect.getmembers(errors, inspect.isclass)
        if issubclass(one, errors.ClientError)
    }
    assert raised - set(trivet.__all__) == set()
    assert trivet.Credentials is Credentials
    assert trivet.Portion is Portion
