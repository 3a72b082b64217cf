"""What a record says of where it was made."""

from pathlib import Path

import pytest

from spectralgrad_lab.records import machine


def test_a_package_that_is_there_without_a_distribution_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_folder_on_the_path.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(machine, "VERSIONS", ("torch", "a_folder_on_the_path", "nowhere_at_all"))
    versions = machine.circumstances("command")["versions"]
    assert versions["a_folder_on_the_path"] == "of unknown version"
    assert versions["nowhere_at_all"] is None
    assert "a_folder_on_the_path of unknown version, nowhere_at_all not installed" in machine.describe(
        machine.circumstances("command")
    )
