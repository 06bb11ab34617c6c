"""The page of performance devices names modules and tests that exist, one of each at least for every device."""

from __future__ import annotations

import re

from tests.support.guides import DOCS

PAGE = (DOCS / "performance_devices.md").read_text()
ROOT = DOCS.parent


def devices() -> list[list[str]]:
    """Cells of each row that describes a device."""
    rows = [re.split(r" \| ", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| ")]
    return [cells for cells in rows if len(cells) == 5 and cells[0] != "Device, module"]


def test_modules_and_tests_of_all_devices_exist() -> None:
    assert len(devices()) >= 20
    for device, _, _, _, test in devices():
        modules = re.findall(r"`([a-z_/]+\.py)`", device)
        assert modules, device
        assert [module for module in modules if not (ROOT / "state_engine" / module).is_file()] == []
        assert (ROOT / test.strip("`")).is_file(), test
