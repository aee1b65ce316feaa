"""The public names of `dlc`."""

from __future__ import annotations

import inspect

import pytest

import dlc
from dlc.core import errors


@pytest.mark.parametrize("name", dlc.__all__)
def test_every_public_name_resolves(name):
    value = getattr(dlc, name)
    assert name == "__version__" or value.__name__ == name
    assert name in dir(dlc)


def test_every_error_class_is_public():
    classes = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and name[0] != "_"
    }
    classes = {name for name in classes if issubclass(getattr(errors, name), errors.DlcError)}
    assert classes <= set(dlc.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        dlc.compil  # noqa: B018
