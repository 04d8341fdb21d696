"""Bridges from what a real host's lspci printed, from configuration space, and from any text or bytes at all."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.module_utils.ironserve import pci
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fake_host import LSPCI, config

GPUS = ["00000000:06:00.0", "00000000:07:00.0", "00000000:75:00.0", "00000000:76:00.0",
        "00000000:84:00.0", "00000000:85:00.0", "00000000:F4:00.0", "00000000:F5:00.0"]  # fmt: skip


def test_a_real_host():
    bridges = {bridge.bus_id: bridge for bridge in pci.parse_lspci(LSPCI)}
    assert len(bridges) == 44
    root, up, down = bridges["0000:00:01.1"], bridges["0000:01:00.0"], bridges["0000:02:03.0"]
    assert (root.kind, root.secondary, root.subordinate) == ("root_port", 1, 8)
    assert root.acs == dict.fromkeys(pci.ACS_BITS, False) | {"SrcValid": True, "UpstreamFwd": True}
    assert (up.kind, up.acs) == ("upstream", None)
    assert (down.kind, down.secondary) == ("downstream", 6)
    assert bridges["0000:51:00.0"].kind == "bridge"  # the one to the BMC's display, PCI Express to PCI
    assert not any(pci.redirects(bridge.acs) for bridge in bridges.values())


def test_the_path_to_a_gpu_follows_from_the_buses_below_each_bridge():
    paths = pci.paths(GPUS, pci.parse_lspci(LSPCI))
    assert paths["00000000:06:00.0"] == ["0000:00:01.1", "0000:01:00.0", "0000:02:03.0"]
    assert paths["00000000:F5:00.0"] == ["0000:f0:01.1", "0000:f1:00.0", "0000:f2:02.0"]


def test_a_switch_turns_around_what_its_gpus_send_each_other_and_root_ports_pass_the_rest_on():
    paths = pci.paths(GPUS, pci.parse_lspci(LSPCI))
    assert pci.between(paths[GPUS[0]], paths[GPUS[1]]) == ["0000:02:03.0", "0000:02:04.0"]
    assert pci.between(paths[GPUS[0]], paths[GPUS[2]]) == [
        "0000:00:01.1", "0000:01:00.0", "0000:02:03.0", "0000:70:01.1", "0000:71:00.0", "0000:72:02.0"
    ]  # fmt: skip
    assert pci.between([], []) == []


def test_a_device_is_below_a_bridge_of_its_own_domain_only():
    bridge = pci.Bridge("0001:00:01.0", "root_port", 1, 8, None)
    assert bridge.leads_to("00000001:06:00.0")
    assert not bridge.leads_to("00000000:06:00.0")
    assert not bridge.leads_to("anything")


def test_configuration_space_says_what_lspci_says():
    bridge = pci.parse_config("0000:02:03.0", config())
    assert (bridge.kind, bridge.secondary, bridge.subordinate) == ("downstream", 3, 5)
    assert [bit for bit, on in bridge.acs.items() if on] == ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]
    assert pci.redirects(bridge.acs)
    assert pci.parse_config("0000:00:01.1", config(port_type=4)).kind == "root_port"
    assert pci.parse_config("0000:06:00.0", config(header=0)) is None


def test_what_a_user_who_is_not_root_may_read_has_no_acs():
    assert pci.parse_config("0000:02:03.0", config()[:64]).acs is None


def test_either_redirect_is_one():
    off = dict.fromkeys(pci.ACS_BITS, False)
    assert pci.redirects({**off, "ReqRedir": True})
    assert pci.redirects({**off, "CmpltRedir": True})
    assert not pci.redirects({**off, "SrcValid": True, "UpstreamFwd": True})
    assert not pci.redirects(None)


@given(st.text() | st.lists(st.sampled_from(LSPCI.splitlines())).map("\n".join))
def test_any_text_is_read(text):
    assert all(bridge.kind for bridge in pci.parse_lspci(text))


@given(st.binary(max_size=300) | st.binary(min_size=64, max_size=300).map(lambda more: config()[:0x40] + more))
def test_any_configuration_space_is_read(content):
    pci.parse_config("0000:00:00.0", content)
