"""What is said of NCCL's variables before anything starts: by the knowledge that ships, of releases as they resolve."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.ironserve import knowledge, nccl_env
from ansible.module_utils.ironserve.findings import Case, judge
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.profiles import Source
from ansible.module_utils.ironserve.resolve import resolve
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[3]
KNOWN = knowledge.nccl(ROOT)
CATALOGUE = knowledge.catalogue(ROOT)
SIX = yaml.safe_load((ROOT / "group_vars/blackwell/main.yml").read_text())["ironserve_nccl_sets"]["low_latency"]
NEWEST = "2.30.7"


def case(env, nccl=NEWEST, engine="vllm", engine_version="0.33.0", flags=None, facts=None, family="sm120"):
    release = {
        "service": "main", "profile": "p", "engine": engine, "lock": {"engine_version": engine_version},
        "flags": {"tensor-parallel-size": "8"} if flags is None else flags,
        "env": {name: str(value) for name, value in env.items()},
    }  # fmt: skip
    packages = {"nvidia-nccl-cu13": nccl} if nccl else {}
    return Case("h1", release, facts=facts or {}, hardware={"gpu_family": family}, packages=packages)


def found(env, **more):
    """(severity, rule, text) of all that is found, the gravest first."""
    findings = judge(case(env, **more), [nccl_env.checks(KNOWN)], CATALOGUE)
    return [(finding["severity"], finding["rule"], finding["text"]) for finding in findings]


def rules(env, **more):
    return [(severity, rule) for severity, rule, _ in found(env, **more)]


def network(**interfaces):
    up = {name: {"addresses": [address] if address else [], "up": True} for name, address in interfaces.items()}
    return {"network": {"interfaces": up, "hcas": ["mlx5_0", "mlx5_1"]}}


# What ships


def test_the_six_variables_of_the_record_are_well():
    assert [row for row in rules(SIX) if row[0] != "note"] == []


@pytest.mark.parametrize("profile", sorted(path.stem for path in (ROOT / "profiles").glob("*.yml")))
def test_every_shipped_profile_is_well_on_every_group_that_it_is_for(profile):
    sources = {path.stem: Source(path.name, yaml.safe_load(path.read_text())) for path in ROOT.glob("profiles/*.yml")}
    lock = {"id": "l", "name": "l", "engine_version": "0.5.23", "python": "3.11", "installed_mib": 1, "folder": "/l"}
    judged = []
    for group in ("blackwell", "hopper", "lab"):
        site = {}
        for name in ("all", group):
            site |= yaml.safe_load((ROOT / "group_vars" / name / "main.yml").read_text())
        release = resolve("h1", "main", profile, site, sources, {"sglang": lock, "vllm": lock}, Problems())
        if release is not None:
            nccl = {"nvidia-nccl-cu13": NEWEST}
            shipped = Case("h1", release, packages=nccl, hardware=site["ironserve_hardware"])
            judged.append(judge(shipped, [nccl_env.checks(KNOWN)], CATALOGUE))
    assert judged
    assert [finding for findings in judged for finding in findings if finding["severity"] != "note"] == []


def test_every_rule_that_is_used_is_in_the_catalogue_and_every_one_there_is_used():
    text = Path(nccl_env.__file__).read_text()
    listed = [entry["id"] for entry in yaml.safe_load((ROOT / "knowledge/checks/nccl.yml").read_text())["checks"]]
    assert [rule for rule in listed if f'"{rule}"' not in text] == []


def test_every_variable_of_the_table_has_a_name_that_nccl_knows():
    assert [entry["name"] for entry in KNOWN["variables"] if entry["name"] not in KNOWN["names"]] == []


# Cases from the field


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NCCL_P2P_LEVEL": "SYS"}, []),
        ({"NCCL_P2P_LEVEL": "4"}, [("warning", "nccl-level-number", '"4" is of the old numbering: it counts as SYS')]),
        ({"NCCL_P2P_LEVEL": "NODE"},
         [("error", "nccl-value", '"NODE" is no level, and NCCL ignores it without a word')]),
        ({"NCCL_P2P_LEVEL": "sys"},
         [("error", "nccl-value", '"sys" is no level, and NCCL ignores it without a word (did you mean "SYS"?)')]),
        ({"NCCL_P2P_LEVEL": ""},
         [("error", "nccl-value", "an empty text is no level, and NCCL ignores it without a word")]),
        ({"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "1"},
         [("warning", "nccl-contradiction", '"SYS" has no effect: NCCL_P2P_DISABLE=1 switches P2P off altogether')]),
    ],
)  # fmt: skip
def test_case_9_p2p_level_takes_words_and_says_so(env, expected):
    assert found(env) == expected


@pytest.mark.parametrize("word", ["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"])
def test_case_9_every_documented_word_is_taken(word):
    assert found({"NCCL_P2P_LEVEL": word}) == []


@pytest.mark.parametrize(("number", "word"), list(enumerate(["LOC", "PIX", "PXB", "PHB", "SYS", "SYS"])))
def test_case_9_an_old_number_is_taken_with_its_word(number, word):
    ((severity, rule, text),) = found({"NCCL_P2P_LEVEL": number})
    assert (severity, rule) == ("warning", "nccl-level-number")
    assert text.endswith(f"counts as {word}")


def test_case_53_gloo_does_not_understand_what_nccl_does():
    facts = network(ens5="10.0.0.4", enp1s0="10.0.1.4", lo="127.0.0.1", docker0="172.17.0.1")
    facts["network"] |= {"hostname": "gpu-a01", "hostname_addresses": ["127.0.1.1"]}
    copied = {"NCCL_SOCKET_IFNAME": "^lo,docker0", "GLOO_SOCKET_IFNAME": "^lo,docker0"}
    assert found(copied, facts=facts) == [
        ("error", "nccl-gloo-interface",
         '"^lo,docker0" is in NCCL\'s syntax: Gloo looks for an interface of that very name'),
        ("warning", "nccl-hostname-loopback",
         "the host's own name, gpu-a01, resolves to 127.0.1.1, which no other host can reach"),
    ]  # fmt: skip
    assert found(copied)[0][:2] == ("error", "nccl-gloo-interface")  # nobody looked at the host: it is wrong anywhere
    assert found({**copied, "GLOO_SOCKET_IFNAME": "ens5"}, facts=facts) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eth7", ("error", '"eth7" is no interface of the host; with an address: enp1s0, ens5')),
        ("ib0", ("error", '"ib0" has no address; with an address: enp1s0, ens5')),
        ("ens", ("error", '"ens" is no interface of the host; with an address: enp1s0, ens5')),
        ("ens5,enp1s0", ("warning", '"ens5,enp1s0" names 2 interfaces: all hosts need as many, in this order')),
    ],
)
def test_case_53_the_interface_of_gloo_is_one_of_the_host_with_an_address(name, expected):
    facts = network(ens5="10.0.0.4", enp1s0="10.0.1.4", ib0="")
    ((severity, rule, text),) = found({"GLOO_SOCKET_IFNAME": name}, facts=facts)
    assert rule == "nccl-gloo-interface"
    assert (severity, text) == expected


def test_case_53_a_loopback_name_is_nobodys_business_on_a_host_that_is_alone():
    facts = network(ens5="10.0.0.4")
    facts["network"] |= {"hostname": "h1", "hostname_addresses": ["127.0.1.1"]}
    assert found({}, facts=facts) == []
    assert rules({}, facts=facts, flags={"nnodes": "2"}) == [("warning", "nccl-hostname-loopback")]
    facts["network"]["hostname_addresses"] = ["127.0.1.1", "10.0.0.4"]
    assert found({}, facts=facts, flags={"nnodes": "2"}) == []


# Names


@pytest.mark.parametrize(
    ("name", "rule", "says"),
    [
        ("NCCL_MAX_CHANNELS", "nccl-unknown", 'is no variable of NCCL\'s (did you mean "NCCL_MAX_NCHANNELS"?)'),
        ("NCL_PROTO", "nccl-misspelt", 'NCCL does not read "NCL_PROTO" (did you mean "NCCL_PROTO"?)'),
        ("nccl_proto", "nccl-misspelt", 'NCCL does not read "nccl_proto" (did you mean "NCCL_PROTO"?)'),
    ],
)
def test_a_name_that_nccl_does_not_know_is_an_error_with_what_was_meant(name, rule, says):
    assert found({name: "LL"}) == [("error", rule, says)]


@pytest.mark.parametrize(
    ("name", "nccl", "expected"),
    [
        ("NCCL_CHECK_MODE", "2.27.7", [("error", "nccl-too-new")]),
        ("NCCL_CHECK_MODE", "2.30.7", []),
        ("NCCL_CHECK_MODE", "", []),
        ("NCCL_LL_THRESHOLD", "2.30.7", [("warning", "nccl-removed")]),
        ("NCCL_WORK_FIFO_DEPTH", "2.21.5", []),
        ("NCCL_WORK_FIFO_DEPTH", "2.28.9", [("warning", "nccl-removed")]),
        ("NCCL_MAX_NCHANNELS", "2.30.7", [("note", "nccl-deprecated")]),
        ("NCCL_ASYNC_ERROR_HANDLING", "2.30.7", [("note", "nccl-deprecated")]),
        ("NCCL_OF_2031", "2.31.2", [("warning", "nccl-unknown")]),
        ("NCCL_FASTRAK_CTRL_DEV", "2.30.7", []),
    ],
)
def test_a_name_is_judged_by_the_version_of_the_lock(name, nccl, expected):
    assert rules({name: "1"}, nccl=nccl, engine="sglang", engine_version="0.5.23") == expected


def test_where_another_nccl_is_loaded_its_version_is_not_guessed():
    env = {"NCCL_CHECK_MODE": "DEBUG_LOCAL"}
    assert rules(env, nccl="2.27.7") == [("error", "nccl-too-new")]
    assert rules({**env, "VLLM_NCCL_SO_PATH": "/opt/nccl/libnccl.so.2"}, nccl="2.27.7") == []


def test_a_plugin_may_know_a_name_that_nobody_knows_here():
    assert rules({"NCCL_OURS": "1", "NCCL_NET_PLUGIN": "ours"}) == [("warning", "nccl-unknown")]


# Values


@pytest.mark.parametrize(
    ("name", "value", "severity", "rule", "says"),
    [
        ("NCCL_NTHREADS", "abc", "error", "nccl-value", '"abc" is no whole number: NCCL makes 0 of it'),
        ("NCCL_BUFFSIZE", "16M", "error", "nccl-value", '"16M" is no whole number: NCCL makes 16 of it'),
        ("NCCL_BUFFSIZE", "0", "error", "nccl-range", "0 bytes is below 1"),
        ("NCCL_MAX_CTAS", "010", "error", "nccl-value", "counts as octal: NCCL makes 8 of it"),
        ("NCCL_BUFFSIZE", "99999999999999999999", "error", "nccl-value", "NCCL takes its default"),
        ("NCCL_NTHREADS", "100", "warning", "nccl-range", "100 is no multiple of 32"),
        ("NCCL_NTHREADS", "1024", "warning", "nccl-range", "1024 is not in 64 to 512"),
        ("NCCL_MAX_CTAS", "128", "warning", "nccl-range", "128 is not in 1 to 64"),
        ("NCCL_P2P_DISABLE", "true", "error", "nccl-value", "NCCL makes 0 of it"),
        ("NCCL_P2P_DISABLE", "2", "error", "nccl-range", "NCCL acts on 1 alone"),
        ("NCCL_CUMEM_ENABLE", "7", "warning", "nccl-range", "7 is none of -2, 0, 1"),
        ("NCCL_PROTO", "LL64", "error", "nccl-value", '"LL64" is none of LL, LL128, Simple'),
        ("NCCL_ALGO", "Rign", "error", "nccl-value", 'did you mean "Ring"?'),
        ("NCCL_ALGO", "", "warning", "nccl-empty", "as if it were not set"),
        ("NCCL_DEBUG", "LOUD", "warning", "nccl-value", '"LOUD" is none of VERSION'),
        ("NCCL_SOCKET_FAMILY", "af_inet", "error", "nccl-value", '"af_inet" is none of AF_INET, AF_INET6'),
        ("NCCL_CTA_POLICY", "DEFAULT|FAST", "error", "nccl-value", '"FAST" is none of'),
        ("NCCL_CONF_FILE", "~/nccl.conf", "error", "nccl-value", "is no absolute path"),
    ],
)
def test_a_value_that_nccl_turns_into_something_else_is_told_with_what_it_becomes(name, value, severity, rule, says):
    ((first, named, text),) = found({name: value})
    assert (first, named) == (severity, rule)
    assert says in text


@pytest.mark.parametrize(
    ("name", "value", "nccl"),
    [
        ("NCCL_P2P_LEVEL", "C2C", "2.25.1"),
        ("NCCL_ALGO", "PAT", "2.22.3"),
        ("NCCL_PROTO", "AllReduce:LL", "2.23.4"),
        ("NCCL_DEBUG_SUBSYS", "ENV,DESTROY", "2.28.9"),
    ],
)
def test_a_value_of_a_newer_nccl_is_none_of_an_older_one(name, value, nccl):
    env = {name: value, "NCCL_DEBUG": "INFO"}
    assert [rule for _, rule in rules(env, nccl=nccl)] == ["nccl-value"]
    assert "nccl-value" not in [rule for _, rule in rules(env)]


def test_the_limit_of_channels_is_that_of_the_version():
    assert rules({"NCCL_MAX_CTAS": "64"}) == []
    ((_, _, text),) = found({"NCCL_MAX_CTAS": "64"}, nccl="2.24.3")
    assert text.startswith("64 is not in 1 to 32 of NCCL 2.24.3")


INTEGERS = [entry for entry in KNOWN["variables"] if entry["kind"] == "integer"]


@given(st.sampled_from(INTEGERS), st.data())
def test_a_number_that_a_variable_takes_is_no_finding(entry, data):
    least, most = entry.get("range") or (0, 0)
    step = entry.get("multiple", 1)
    number = data.draw(
        st.sampled_from(entry["values"])
        if "values" in entry
        else st.integers(least, most or 2**40).map(lambda number: number - number % step).filter(lambda n: n >= least)
    )
    written = data.draw(st.sampled_from([str(number), f"{number:#x}"]))
    notes = functools.partial(filter, lambda row: row[0] != "note")
    assert list(notes(rules({entry["name"]: written}))) == []


@given(st.sampled_from([entry["name"] for entry in KNOWN["variables"]]), st.text(max_size=40))
def test_no_value_is_too_strange_to_be_judged(name, value):
    found({name: value})
    found({name: value}, nccl="2.18.1", facts=network(eth0="10.0.0.1"))


# Variables that belong together


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_MIN_NCHANNELS": 32, "NCCL_MAX_NCHANNELS": 16},
        {"NCCL_MIN_CTAS": 32, "NCCL_MAX_CTAS": 16},
        {"NCCL_MIN_CTAS": 32, "NCCL_MAX_NCHANNELS": 16},
    ],
)
def test_a_minimum_over_its_maximum_is_an_error(env):
    (low, high) = env
    assert [row for row in found(env) if row[0] != "note"] == [
        ("error", "nccl-min-over-max", f"32 is more than {high}, which is 16")
    ]
    assert "nccl-min-over-max" not in [rule for _, rule in rules({low: 16, high: 16})]


@pytest.mark.parametrize(
    ("env", "more", "expected"),
    [
        ({"NCCL_ALGO": "NVLS"}, {}, ["error", "warning"]),
        ({"NCCL_ALGO": "NVLS"}, {"family": "sm90"}, []),
        ({"NCCL_ALGO": "NVLS"}, {"family": "sm90", "nccl": "2.23.4"}, []),
        ({"NCCL_ALGO": "NVLS,Ring"}, {}, []),
        ({"NCCL_ALGO": "NVLS"}, {"flags": {}}, []),
        ({"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "0"}, {"family": "sm90"}, ["error", "warning"]),
        ({"NCCL_ALGO": "NVLS"}, {"family": "sm90", "engine": "sglang", "engine_version": "0.5.23",
                                 "flags": {"tp-size": "8"}}, ["error", "warning"]),
        ({"NCCL_ALGO": "NVLS"}, {"family": "sm90", "engine": "sglang", "engine_version": "0.5.23",
                                 "flags": {"tp-size": "8", "enable-nccl-nvls": True}}, []),
        ({"NCCL_ALGO": "NVLS", "NCCL_PROTO": "LL"}, {"family": "sm90"}, ["error", "warning"]),
        ({"NCCL_ALGO": "NVLSTree"}, {"family": "sm90"}, ["error", "warning"]),
        ({"NCCL_ALGO": "NVLSTree"}, {"family": "sm90", "flags": {"tensor-parallel-size": "8", "nnodes": "2"}},
         ["warning"]),
        ({"NCCL_ALGO": "CollNetDirect"}, {"family": "sm90"}, ["error", "warning"]),
        ({"NCCL_ALGO": "PAT"}, {"family": "sm90"}, ["error"]),
        ({"NCCL_ALGO": "Tree"}, {}, ["warning"]),
        ({"NCCL_ALGO": "AllReduce:Tree"}, {}, []),
        ({"NCCL_ALGO": "^Ring"}, {}, []),
    ],
)  # fmt: skip
def test_an_algorithm_that_cannot_run_here_is_told_where_nothing_else_is_left(env, more, expected):
    told = rules(env, **more)
    assert [severity for severity, _ in told] == expected
    assert {rule for _, rule in told} <= {"nccl-no-algorithm"}


def test_the_topology_says_more_than_the_family():
    nvlink = {"gpus": {"topology": [["X", "NV18"], ["NV18", "X"]], "gpus": []}}
    pcie = {"gpus": {"topology": [["X", "PHB"], ["PHB", "X"]], "gpus": []}}
    assert rules({"NCCL_ALGO": "NVLS"}, facts=nvlink) == []
    ((_, _, text), _) = found({"NCCL_ALGO": "NVLS"}, facts=pcie, family="sm90")
    assert text == "no algorithm is left for AllReduce (NVLS: it needs NVSwitch, and these GPUs have no NVLink)"


def test_no_way_between_gpus_is_an_error_and_a_slow_one_a_warning():
    off = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert rules({"NCCL_SHM_DISABLE": "1"}) == []
    assert rules(off) == [("warning", "nccl-no-transport")]
    assert rules({"NCCL_P2P_LEVEL": "LOC", "NCCL_SHM_DISABLE": "1"}) == [("warning", "nccl-no-transport")]
    assert rules({**off, "NCCL_NET_DISABLE_INTRA": "1"}) == [("error", "nccl-no-transport")]
    assert rules(off, facts={"network": {"interfaces": {}}}) == [("error", "nccl-no-transport")]


@pytest.mark.parametrize(
    ("engine", "version", "env", "says"),
    [
        ("sglang", "0.5.3", {"NCCL_CUMEM_ENABLE": "1"}, "1 never arrives: sglang 0.5.3 sets it to 0 itself"),
        ("sglang", "0.5.23", {"NCCL_CUMEM_ENABLE": "1"}, ""),
        ("sglang", "0.5.23", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "1 never arrives: sglang 0.5.23 sets it to 8"),
        ("sglang", "0.5.23", {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, ""),
        ("vllm", "0.33.0", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, ""),
        ("vllm", "0.33.0", {"NCCL_ASYNC_ERROR_HANDLING": "1"}, "vllm 0.33.0 removes it from its environment"),
    ],
)
def test_what_an_engine_writes_itself_never_arrives(engine, version, env, says):
    told = [text for _, rule, text in found(env, engine=engine, engine_version=version) if rule == "nccl-engine-sets"]
    assert [says in text for text in told] == ([True] if says else [])


def test_what_an_engine_sets_itself_is_known_for_the_proof():
    more = {"engine": "sglang", "engine_version": "0.5.23"}
    told = nccl_env.engine_env(case({}, **more), KNOWN)
    assert told == {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    told = nccl_env.engine_env(case({}, flags={"enable-symm-mem": True}, **more), KNOWN)
    assert told == {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    told = nccl_env.engine_env(case({"NCCL_NVLS_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}, **more), KNOWN)
    assert told == {"NCCL_CUMEM_ENABLE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    assert nccl_env.engine_env(case({}), KNOWN) == {}


def test_a_flag_that_has_the_engine_set_a_variable_is_named():
    flags = {"tp-size": "8", "enable-symm-mem": True}
    ((_, _, text),) = found({"NCCL_NVLS_ENABLE": "0"}, engine="sglang", engine_version="0.5.23", flags=flags)
    assert text == "0 never arrives: sglang 0.5.23 sets it to 1 itself because of --enable-symm-mem"


@pytest.mark.parametrize(
    ("level", "subsystems", "expected"),
    [
        ("INFO", "INIT,ENV,GRAPH", []),
        ("INFO", "INIT, ENV", []),
        ("INFO", "INIT,GRAPH", [("warning", "leaves ENV out: the log will not show which settings NCCL took")]),
        ("INFO", "^ENV,TUNING,COLL,CALL",
         [("warning", "leaves ENV out: the log will not show which settings NCCL took")]),
        ("INFO", "ENV,TUNING", [("warning", "holds TUNING: NCCL writes a line for each collective, thousands a second "
                                            "in decoding")]),
        ("", "ENV", [("note", "has no effect without NCCL_DEBUG=INFO")]),
    ],
)  # fmt: skip
def test_subsystems_that_hide_the_proof_or_flood_the_log_are_told(level, subsystems, expected):
    env = {"NCCL_DEBUG_SUBSYS": subsystems, **({"NCCL_DEBUG": level} if level else {})}
    assert [(severity, text) for severity, rule, text in found(env) if rule == "nccl-debug"] == expected


# The host


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, []),
        ({"NCCL_SOCKET_IFNAME": "en"}, []),
        ({"NCCL_SOCKET_IFNAME": "=ens5"}, []),
        ({"NCCL_SOCKET_IFNAME": "eth0"}, ['"eth0" chooses no interface of the host; those that are up: ens5, lo']),
        ({"NCCL_SOCKET_IFNAME": "=en"}, ['"=en" chooses no interface of the host; those that are up: ens5, lo']),
        ({"NCCL_IB_HCA": "mlx5"}, []),
        ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}, []),
        ({"NCCL_IB_HCA": "^mlx5_1"}, []),
        ({"NCCL_IB_HCA": "mlx4"}, ['"mlx4" chooses no InfiniBand or RoCE device of the host; it has mlx5_0, mlx5_1, '
                                   "and NCCL falls back to sockets"]),
    ],
)  # fmt: skip
def test_an_interface_is_compared_with_those_of_this_host(env, expected):
    facts = network(ens5="10.0.0.4", lo="127.0.0.1", ib0="")
    assert [text for _, _, text in found(env, facts=facts)] == expected
    assert found(env) == []  # nobody looked at the host: nothing is known


def test_a_missing_device_is_an_error_only_where_hosts_have_to_reach_each_other():
    facts, env = network(ens5="10.0.0.4"), {"NCCL_IB_HCA": "mlx4"}
    assert rules(env, facts=facts) == [("warning", "nccl-hca")]
    assert rules(env, facts=facts, flags={"tensor-parallel-size": "16", "nnodes": "2"}) == [("error", "nccl-hca")]


def test_files_of_nccls_on_the_host_that_add_settings_are_told():
    files = {
        "/etc/nccl.conf": "NCCL_PROTO=Simple\nNCCL_IB_DISABLE=1\n",
        "/var/cache/ironserve/.nccl.conf": "NCCL_NTREADS=64\n",
    }
    told = judge(case({"NCCL_PROTO": "LL"}, facts={"nccl": {"conf_files": files}}), [nccl_env.checks(KNOWN)], CATALOGUE)
    assert [(row["severity"], row["rule"], row["where"], row["key"], row["text"]) for row in told] == [
        ("error", "nccl-unknown", "host h1", "/var/cache/ironserve/.nccl.conf: NCCL_NTREADS",
         'is no variable of NCCL\'s (did you mean "NCCL_NTHREADS"?)'),
        ("warning", "nccl-conf-file", "host h1", "/var/cache/ironserve/.nccl.conf",
         "adds NCCL_NTREADS=64 to what the release says"),
        ("warning", "nccl-conf-file", "host h1", "/etc/nccl.conf", "adds NCCL_IB_DISABLE=1 to what the release says"),
        ("note", "nccl-conf-file", "host h1", "/etc/nccl.conf", "NCCL_PROTO=Simple loses to LL"),
    ]  # fmt: skip


def test_a_file_that_the_release_names_hides_the_one_at_home():
    files = {"/opt/nccl.conf": "NCCL_PROTO=LL\n", "/var/cache/ironserve/.nccl.conf": "NCCL_ALGO=Tree\n"}
    facts = {"nccl": {"conf_files": files}}
    assert found({"NCCL_CONF_FILE": "/opt/nccl.conf"}, facts=facts) == []
    assert "nccl-conf-file" in [
        rule for _, rule in rules({"NCCL_CONF_FILE": "/opt/nccl.conf"}, facts=facts, nccl="2.22.3")
    ]


@pytest.mark.parametrize(
    ("env", "facts", "expected"),
    [
        ({"NCCL_CONF_FILE": "/opt/nccl.conf"}, {"conf_files": {}}, [("error", "nccl-file-missing")]),
        ({"NCCL_CONF_FILE": "/opt/nccl.conf"}, {}, []),
        ({"NCCL_GRAPH_FILE": "/opt/g.xml"}, {"files": {"/opt/g.xml": False}}, [("error", "nccl-file-missing")]),
        ({"NCCL_GRAPH_FILE": "/opt/g.xml"}, {"files": {"/opt/g.xml": True}}, []),
        ({"NCCL_GRAPH_FILE": "/opt/g.xml"}, {"conf_files": {}}, []),
        ({"NCCL_TOPO_FILE": "/opt/t.xml"}, {"files": {"/opt/t.xml": False}}, [("warning", "nccl-file-missing")]),
        ({"NCCL_CONF_FILE": "/opt/nccl.conf"}, {"error": "no answer"}, []),
    ],
)
def test_a_file_that_is_not_there_is_told_where_somebody_looked(env, facts, expected):
    assert rules(env, facts={"nccl": facts}) == expected


def test_a_value_of_a_set_is_told_where_the_set_is_chosen():
    origins = {"env": [{"name": "NCCL_PROTO", "origin": "profiles/p.yml nccl_set, NCCL set low of host group b"}]}
    release = case({"NCCL_PROTO": "LL64"}).release
    (finding,) = judge(Case("h1", release, origins=origins), [nccl_env.checks(KNOWN)], CATALOGUE)
    assert (finding["where"], finding["key"]) == (
        "profiles/p.yml",
        "nccl_set (NCCL set low of host group b): NCCL_PROTO",
    )
