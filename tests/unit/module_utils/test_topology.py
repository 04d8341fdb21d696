"""How GPUs reach each other, from tables that real hosts printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.ironserve import smi, topology

SWITCHED = smi.parse_topology(
    (
        Path(__file__).parents[2] / "fixtures" / "host" / "nvidia-smi-topo-8x-rtx-pro-6000-pex890xx.txt"
    ).read_text()
)  # fmt: skip


def test_eight_gpus_behind_four_switches():
    all_of_them = topology.links(SWITCHED, range(8))
    assert len(all_of_them) == 28
    assert sorted(set(all_of_them)) == ["NODE", "PIX", "SYS"]
    assert (topology.interconnect(all_of_them), topology.farthest(all_of_them)) == ("switch", "SYS")
    assert topology.links(SWITCHED, [2, 3]) == ["PIX"]
    assert topology.farthest(topology.links(SWITCHED, [0, 2])) == "NODE"


@pytest.mark.parametrize(
    ("links", "is_what"),
    [(["NV18"] * 3, "nvlink"), (["NV12", "SYS", "SYS"], "mixed"), (["PHB", "NODE"], "direct"), (["PXB"], "switch"),
     ([], ""), (["?"], "")],
)  # fmt: skip
def test_interconnects(links, is_what):
    assert topology.interconnect(links) == is_what


def test_a_table_that_lacks_a_gpu_tells_nothing():
    assert topology.links(SWITCHED, [0, 8]) == []
    assert topology.links([], [0, 1]) == []
    assert topology.over_nvlink([]) is False
