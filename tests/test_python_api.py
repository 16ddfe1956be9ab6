"""The library as Python sees it: its names, what a run gives back, and how a run is gone on with."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import coterie as ct

MODULES = [found.name for found in pkgutil.iter_modules(ct.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_no_name_of_the_library_hides_one_of_its_modules(name):
    module = importlib.import_module(f"coterie.{name}")
    assert getattr(ct, name) is module


def test_every_public_name_is_there():
    assert [name for name in ct.__all__ if not hasattr(ct, name)] == []
    assert not set(ct.__all__) & set(MODULES)


def test_the_package_of_algorithms_can_be_imported_and_the_catalogue_has_a_name_of_its_own():
    import coterie.algorithms as package

    assert package.wecfl is ct.wecfl
    assert ct.methods.find("wecfl") is ct.wecfl
