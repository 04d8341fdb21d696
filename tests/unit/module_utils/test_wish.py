"""Several services on a host: each a view of the host's variables, and nothing that two of them fight over."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.profiles import Source
from ansible.module_utils.ironserve.site import numbers_as_such
from ansible.module_utils.ironserve.systemd import SERVICE_NAME_RULE
from ansible.module_utils.ironserve.wish import names, resolve_host
from hypothesis import given
from hypothesis import strategies as st

A, B, C = (f"GPU-{digit * 8}-1111-2222-3333-444444444444" for digit in "abc")
MIG = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
LOCK = {"id": "l-1", "name": "l", "engine_version": "1", "python": "3.11", "installed_mib": 1, "folder": "/l"}
SITE = {
    "ironserve_host_group": "lab",
    "ironserve_profile_paths": ["profiles"],
    "ironserve_listen_address": "0.0.0.0",
    "ironserve_port": 8000,
    "ironserve_profile": "p",
    "ironserve_model": {"path": "/srv/m", "served_name": "tiny"},
    "ironserve_hardware": {"gpu_count": 8, "gpu_family": "sm120"},
    "ironserve_sizes": {"tensor_parallel": 8, "memory": 0.8},
    "ironserve_nccl_sets": {},
    "ironserve_locks": {"vllm": "v", "sglang": "s"},
}
PROFILES = {
    "p": {"description": "p", "engine": "vllm"},
    "wide": {"description": "w", "engine": "vllm", "flags": {"tensor-parallel-size": "${tensor_parallel}"}},
    "needs": {"description": "n", "engine": "vllm", "requires": {"gpu_count": 2}},
    "visible": {"description": "v", "engine": "vllm", "env": {"CUDA_VISIBLE_DEVICES": "0"}},
    "sglang": {"description": "s", "engine": "sglang", "flags": {"tp-size": 2}},
    "sglang_nccl": {"description": "s", "extends": "sglang", "flags": {"disable-custom-all-reduce": True}},
}
TWO = {"a": {"gpus": [A], "port": 8001}, "b": {"gpus": [B], "port": 8002}}


def run(services=None, service="", profile="", **site):
    problems = Problems()
    sources = {name: Source(f"profiles/{name}.yml", data) for name, data in PROFILES.items()}
    site = {**SITE, **site, **({} if services is None else {"ironserve_services": services})}
    site = {name: value for name, value in site.items() if value is not None}
    releases = resolve_host("h1", service, profile, site, sources, {"vllm": LOCK, "sglang": LOCK}, problems)
    return releases, problems.found


def releases(*arguments, **more):
    found, problems = run(*arguments, **more)
    assert problems == []
    return {release["service"]: release for release in found}


def test_a_host_that_names_no_service_has_main():
    [main] = releases().values()
    assert (main["service"], main["gpus"], main["host_env"]) == ("main", [], {})


def test_a_host_may_say_that_it_has_none():
    assert run({}) == ([], [])


def test_a_service_takes_from_the_host_what_it_does_not_say():
    model = {"path": "/srv/other"}
    found = releases({"b": {**TWO["b"], "sizes": {"tensor_parallel": 1}, "profile": "wide"},
                      "a": {**TWO["a"], "model": model, "listen_address": "127.0.0.1"}})  # fmt: skip
    assert list(found) == ["a", "b"]
    assert (found["a"]["port"], found["a"]["model_name"], found["a"]["address"]) == (8001, "/srv/other", "127.0.0.1")
    assert (found["b"]["port"], found["b"]["model_name"], found["b"]["profile"]) == (8002, "tiny", "wide")
    assert found["b"]["flags"] == {"tensor-parallel-size": "1"}
    assert found["b"]["declared_profile"] == "wide"


def test_gpus_and_port_are_the_hosts_and_not_the_releases():
    found = releases({"a": TWO["a"], "b": {**TWO["b"], "gpus": [C, B]}})
    assert found["a"]["release_id"] == found["b"]["release_id"]
    assert found["b"]["host_env"] == {"CUDA_VISIBLE_DEVICES": f"{C},{B}", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_main_may_name_its_gpus_too():
    assert releases(ironserve_gpus=[A, MIG])["main"]["gpus"] == [A, MIG]


def test_one_service_is_meant():
    assert list(releases(TWO, service="b")) == ["b"]
    wide = releases(TWO, service="b", profile="wide", ironserve_sizes={"tensor_parallel": 1})["b"]
    assert (wide["profile"], wide["declared_profile"]) == ("wide", "p")
    assert run(TWO, service="bb")[1] == ['host h1: service: unknown service "bb" (did you mean "b"?); known: a, b']
    assert run({"chat": {}}, service="chta")[1] == [
        'host h1: service: unknown service "chta" (did you mean "chat"?); known: chat'
    ]
    assert names({"ironserve_services": TWO}) == ["a", "b"]
    assert names({"ironserve_services": None}, "main") == ["main"]
    with pytest.raises(ValueError, match="known: a, b"):
        names({"ironserve_services": TWO}, "c")


def test_a_profile_for_several_services_needs_one_that_is_meant():
    assert run(TWO, profile="wide")[1] == [
        'host h1: profile: "wide" is for one service: add -e service= and one of a, b'
    ]


@pytest.mark.parametrize(
    ("services", "site", "told"),
    [
        ({"a": TWO["a"], "b": {**TWO["b"], "port": 8001}}, {},
         "host h1: ironserve_services.a.port, ironserve_services.b.port: services a, b have port 8001: give each one "
         "of its own"),
        ({"a": {"gpus": [A]}, "b": {"gpus": [B]}}, {},
         "host h1: ironserve_port: services a, b have port 8000: give each one of its own"),
        ({"a": TWO["a"], "b": {**TWO["b"], "gpus": [A, B]}}, {},
         f"host h1: ironserve_services.a.gpus, ironserve_services.b.gpus: services a, b have {A}: a GPU belongs to one "
         "service"),
        ({"a": TWO["a"], "b": {"port": 8002}}, {"ironserve_gpus": [A]},
         f"host h1: ironserve_gpus, ironserve_services.a.gpus: services a, b have {A}: a GPU belongs to one service"),
        ({"a": {**TWO["a"], "gpus": [A, A]}}, {}, f"host h1: ironserve_services.a.gpus: names {A} twice"),
        ({"a": TWO["a"], "b": {"port": 8002}}, {},
         "host h1: ironserve_services.b.gpus: is not set: of several services on a host with GPUs each has its own; "
         "name GPUs by UUID, whole, as nvidia-smi -L prints them: GPU-…, MIG-…"),
        ({"a": {"gpus": [0]}}, {},
         'host h1: ironserve_services.a.gpus: "0" is an index, and indices change with a reboot, a driver or a card: '
         "name GPUs by UUID, whole, as nvidia-smi -L prints them: GPU-…, MIG-…"),
        ({"a": {"gpus": ["GPU-aaaaaaaa"]}}, {},
         'host h1: ironserve_services.a.gpus: "GPU-aaaaaaaa" is no UUID: name GPUs by UUID, whole, as nvidia-smi -L '
         "prints them: GPU-…, MIG-…"),
        ({"a": TWO["a"], "b": TWO["b"]}, {"ironserve_hardware": {"gpu_count": 1, "gpu_family": "sm90"}},
         "host h1: ironserve_hardware.gpu_count: is 1, and the host's services name 2 GPUs"),
        ({"a": {**TWO["a"], "profile": "wide"}}, {},
         "profiles/wide.yml: flags.tensor-parallel-size: tensor parallel 8 on service a of host h1, which names 1 GPU"),
        ({"a": {**TWO["a"], "profile": "needs"}}, {},
         "profiles/needs.yml: requires.gpu_count: needs 2 GPUs; service a of host h1 names 1"),
        ({"a": {**TWO["a"], "profile": "visible"}}, {},
         "profiles/visible.yml: env.CUDA_VISIBLE_DEVICES: is set by the service: a of host h1 names its GPUs"),
        ({"a": {"gpus": [A, B], "profile": "sglang"}}, {},
         "profiles/sglang.yml: flags.disable-custom-all-reduce: has to be true for service a of host h1, which names "
         "GPUs by UUID: the engine's own all-reduce takes them for numbers"),
        ({"a": {"prot": 1}}, {}, 'host h1: ironserve_services.a.prot: unknown key (did you mean "port"?); known: '
         "api_key, gpus, listen_address, model, port, profile, secret_env, secret_flags, sizes"),
        ({"a": None}, {}, "host h1: ironserve_services.a: expected a mapping, got nothing"),
        (["a"], {}, "host h1: ironserve_services: expected a mapping, got a list"),
        ({"a": {"port": "x"}}, {}, "host h1: ironserve_services.a.port: expected a whole number, got text: 'x'"),
        ({"a": {}}, {"ironserve_model": None}, "host h1: ironserve_services.a.model: is not set: the model that the "
         "service serves"),
        ({"a": {}}, {"ironserve_profile": None},
         "host h1: ironserve_profile: is not set, and no -e profile= was given"),
        ({"Chat": {}}, {}, f'host h1: ironserve_services: "Chat" {SERVICE_NAME_RULE}'),
        ({"environment-x": {}}, {}, f'host h1: ironserve_services: "environment-x" {SERVICE_NAME_RULE}'),
        ({"router": {}}, {}, f'host h1: ironserve_services: "router" {SERVICE_NAME_RULE}'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_key(services, site, told):
    assert run(services, **site)[1] == [told]


def test_everything_wrong_is_said_at_once():
    services = {"a": {"gpus": [0], "port": 1}, "b": {"gpus": [A], "port": 1, "profile": "wide"}, "c": {"x": 1}}
    assert len(run(services)[1]) == 5


def test_a_model_of_each_service_needs_none_of_the_host():
    model = {"path": "/srv/x"}
    found = releases({name: {**own, "model": model} for name, own in TWO.items()}, ironserve_model=None)
    assert found["b"]["model"]["path"] == "/srv/x"


def test_sglang_takes_uuids_where_nccl_carries_all_traffic():
    assert run({"a": {"gpus": [A, B], "profile": "sglang_nccl"}})[1] == []
    assert run({"a": {"profile": "sglang"}})[1] == []


def test_without_gpus_on_the_host_several_services_need_none():
    cpu = {"gpu_count": 0, "gpu_family": "none"}
    assert run({"a": {"port": 1}, "b": {"port": 2}}, ironserve_hardware=cpu)[1] == []


def test_a_port_of_a_service_may_come_as_text_from_the_command_line():
    assert numbers_as_such({"ironserve_services": {"a": {"port": "8001", "profile": "1"}, "b": None}}) == {
        "ironserve_services": {"a": {"port": 8001, "profile": "1"}, "b": None}
    }


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just(A),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["profile", "port", "listen_address", "model", "gpus", "sizes", "x"])


@given(ANYTHING | st.dictionaries(st.text(max_size=6), st.dictionaries(KEYS, ANYTHING, max_size=5), max_size=3))
def test_whatever_the_services_are_they_are_resolved_or_explained(services):
    found, problems = run(services)
    assert not (found and problems)
    assert found or problems or services == {}
