"""The ports that engines take beside their own, as their sources say."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.engines import sglang, vllm

ATTENTION = {"enable-dp-attention": True, "dp-size": "8", "tp-size": "8"}


def ports(engine, flags: dict, port: int = 8000) -> list[int]:
    return sorted(engine.derived_ports({"flags": flags, "port": port}))


@pytest.mark.parametrize(
    ("flags", "port", "taken"),
    [
        ({"tp-size": "8"}, 8000, []),
        ({"tp-size": "8", "nccl-port": "28000"}, 8000, [28000]),
        (ATTENTION, 8000, [8233, 8234, 8235, 8236, 8237, 8238]),
        ({**ATTENTION, "dp-size": "1"}, 8000, []),
        (ATTENTION, 65400, [65167, 65168, 65169, 65170, 65171, 65172]),  # none above 65535
        ({**ATTENTION, "dist-init-addr": "10.0.0.1:20000"}, 8000, [20000, 20001, 20002, 20003, 20004, 20005]),
        ({**ATTENTION, "dist-init-addr": "[fd00::1]:65533"}, 8000, [65526, 65527, 65528, 65529, 65530, 65533]),
        ({"dist-init-addr": "10.0.0.1:20000", "nnodes": "2", "node-rank": "0"}, 8000, [20000]),
        ({"dist-init-addr": "10.0.0.1:20000", "nnodes": "2", "node-rank": "1"}, 8000, []),
        ({**ATTENTION, "dist-init-addr": "10.0.0.1:20000", "nnodes": "2"}, 8000, [*range(20000, 20007), 20013]),
    ],
)
def test_sglang_derives_ports_for_data_parallel_attention(flags, port, taken):
    assert ports(sglang, flags, port) == taken


def test_each_port_says_what_it_is_for():
    told = sglang.derived_ports({"flags": ATTENTION, "port": 8000})
    assert (told[8233], told[8235]) == ("data parallel attention", "data parallel attention, detokenizer")


@pytest.mark.parametrize(
    ("flags", "taken"),
    [
        ({"tensor-parallel-size": "8"}, []),
        ({"data-parallel-size": "4"}, []),
        ({"nnodes": "2"}, [29501]),
        ({"nnodes": "2", "master-port": "29600"}, [29600]),
        ({"nnodes": "2", "master-port": "here"}, [29501]),
        ({"nnodes": "2", "node-rank": "1"}, []),
        ({"data-parallel-size": "4", "data-parallel-size-local": "2"}, [29550]),
        ({"data-parallel-address": "10.0.0.1", "data-parallel-rpc-port": "13345"}, [13345]),
        ({"data-parallel-address": "10.0.0.1", "headless": True}, []),
    ],
)
def test_vllm_takes_fixed_ports_only_for_several_hosts(flags, taken):
    assert ports(vllm, flags) == taken
