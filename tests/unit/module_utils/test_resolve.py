"""Resolve: what is wrong is said in one list; what is right gives the same id whatever way it was written."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.flags import argv
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.profiles import PROFILE, Source
from ansible.module_utils.ironserve.resolve import probe_address
from ansible.module_utils.ironserve.site import check_extra_variables, numbers_as_such
from ansible.module_utils.ironserve.wish import resolve_host
from hypothesis import given
from hypothesis import strategies as st

LOCK = {
    "id": "vllm-1-abc",
    "name": "vllm-1",
    "engine_version": "1",
    "python": "3.11",
    "installed_mib": 1,
    "folder": "/l",
}
SITE = {
    "ironserve_group_vars_loaded": True,
    "ironserve_host_group": "lab",
    "ironserve_profile_paths": ["profiles"],
    "ironserve_listen_address": "0.0.0.0",
    "ironserve_port": 8000,
    "ironserve_model": {"path": "/srv/m", "served_name": "tiny"},
    "ironserve_hardware": {"gpu_count": 8, "gpu_family": "sm120"},
    "ironserve_sizes": {"tensor_parallel": 8},
    "ironserve_nccl_sets": {"low_latency": {"NCCL_PROTO": "LL", "NCCL_NTHREADS": 512}},
    "ironserve_locks": {"vllm": "vllm-1"},
}
BASE = {"description": "a base", "engine": "vllm", "flags": {"dtype": "bfloat16", "enforce-eager": True}}


def run(profiles, name="p", site=None, service="main"):
    problems = Problems()
    sources = {key: Source(f"profiles/{key}.yml", data) for key, data in profiles.items()}
    site = {**SITE, **(site or {})}
    releases = resolve_host("h1", service, name, site, sources, {"vllm": LOCK}, problems)
    return next(iter(releases), None), problems.found


def flags(profiles, **more):
    release, problems = run(profiles, **more)
    assert problems == []
    return release["flags"]


def test_a_child_merges_flags_and_replaces_the_rest():
    child = {"description": "a child", "extends": "base", "flags": {"dtype": "float16", "max-num-seqs": 4}}
    release, problems = run({"base": BASE, "p": child})
    assert problems == []
    assert release["flags"] == {"dtype": "float16", "enforce-eager": True, "max-num-seqs": "4"}
    assert release["engine"] == "vllm"


def test_size_of_the_group():
    assert flags({"p": {**BASE, "flags": {"tensor-parallel-size": "${tensor_parallel}"}}}) == {
        "tensor-parallel-size": "8"
    }


def test_order_and_form_of_the_profile_do_not_change_the_release():
    one, _ = run({"p": {**BASE, "flags": {"a": 1, "b": "x"}}})
    inherited = {"description": "other words", "extends": "base", "flags": {"a": 1}}
    two, _ = run({"base": {**BASE, "flags": {"b": "x", "a": 2}}, "p": inherited})
    assert one["argv"] == two["argv"]
    assert one["release_id"] == two["release_id"]


def test_port_and_address_are_the_hosts_and_not_the_releases():
    one, _ = run({"p": BASE})
    two, _ = run({"p": BASE}, site={"ironserve_port": 9000, "ironserve_listen_address": "10.0.0.5"})
    assert one["release_id"] == two["release_id"]
    assert one["argv"] != two["argv"]
    assert two["url"] == "http://10.0.0.5:9000"


@pytest.mark.parametrize(
    "change",
    [
        {"flags": {"dtype": "float16"}},
        {"env": {"A": "1"}},
        {"nccl_set": "low_latency"},
    ],
)
def test_what_runs_is_in_the_release_id(change):
    assert run({"p": BASE})[0]["release_id"] != run({"p": {**BASE, **change}})[0]["release_id"]


def test_everything_wrong_is_said_at_once_with_file_key_and_what_was_meant():
    bad = {
        "descripton": "misspelt",
        "engine": "vlm",
        "flags": {"--dtype": "x", "max_num_seqs": 4, "port": 1, "list": [[1]], "tp": "${tensor_paralel}"},
        "env": {"NCCL_PROTO": True},
        "startup_timeout_s": "long",
    }
    _, problems = run(
        {"p": bad}, site={"ironserve_port": 70000, "ironserve_prot": 1, "ironserve_model": {"path": "srv/m"}}
    )
    told = "\n".join(problems)
    for expected in (
        'host h1: ironserve_prot: unknown variable (did you mean "ironserve_port"?)',
        "host h1: ironserve_port: 70000 is more than 65535",
        'host h1: ironserve_model.path: expected an absolute path, got "srv/m"',
        'profiles/p.yml: descripton: unknown key (did you mean "description"?)',
        "profiles/p.yml: description: is missing",
        'profiles/p.yml: engine: "vlm" is none of sglang, vllm (did you mean "vllm"?)',
        "profiles/p.yml: flags.list[0]: a list is no item of a list: write text, a number or a mapping",
        'profiles/p.yml: flags.--dtype: write the flag without dashes in front and with dashes inside: "dtype"',
        "profiles/p.yml: flags.max_num_seqs: write the flag without dashes in front and with dashes inside: "
        '"max-num-seqs"',
        "profiles/p.yml: env.NCCL_PROTO: expected text or a number, got true/false: True",
        "profiles/p.yml: startup_timeout_s: expected a whole number, got text: 'long'",
    ):
        assert expected in told


def test_a_flag_that_the_service_sets_is_refused_and_the_variable_named():
    assert run({"p": {**BASE, "flags": {"port": 1}}})[1] == [
        "profiles/p.yml: flags.port: is set by the service: use ironserve_port"
    ]


def test_unknown_profile_lists_the_known():
    assert run({"triton_nccl": BASE, "baseline": BASE}, name="triton_ncl")[1] == [
        'profile: unknown profile "triton_ncl" (did you mean "triton_nccl"?); known: baseline, triton_nccl'
    ]


def test_unknown_parent_names_the_file_that_says_it():
    assert run({"p": {**BASE, "extends": "bas"}, "base": BASE})[1] == [
        'profiles/p.yml: extends: unknown profile "bas" (did you mean "base"?); known: base, p'
    ]


def test_all_else_that_is_wrong_is_said_beside_an_unknown_parent():
    child = {**BASE, "extends": "bas", "flag": {}, "flags": {"--x": 1}, "startup_timeout_s": "long"}
    assert run({"p": child, "base": BASE})[1] == [
        'profiles/p.yml: extends: unknown profile "bas" (did you mean "base"?); known: base, p',
        'profiles/p.yml: flag: unknown key (did you mean "flags"?); known: ' + ", ".join(sorted(PROFILE.keys)),
        "profiles/p.yml: startup_timeout_s: expected a whole number, got text: 'long'",
        'profiles/p.yml: flags.--x: write the flag without dashes in front and with dashes inside: "x"',
    ]


def test_a_circle_is_named():
    assert run({"p": {**BASE, "extends": "q"}, "q": {**BASE, "extends": "p"}})[1] == [
        "profiles/q.yml: extends: goes in a circle: p -> q -> p"
    ]


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_a_profile_that_is_no_mapping(data):
    assert "expected a mapping of keys" in run({"p": data})[1][0]


def test_no_profile_at_all():
    assert run({"p": BASE}, name="")[1] == ["host h1: ironserve_profile: is not set, and no -e profile= was given"]


def test_unknown_size_and_set_name_the_group():
    _, problems = run({"p": {**BASE, "nccl_set": "low_latncy", "flags": {"tp": "${tensor_paralel}"}}})
    assert problems == [
        'profiles/p.yml: flags.tp: unknown size of host group lab "tensor_paralel" (did you mean "tensor_parallel"?); '
        "known: tensor_parallel",
        'profiles/p.yml: nccl_set: unknown NCCL set of host group lab "low_latncy" (did you mean "low_latency"?); '
        "known: low_latency",
    ]


def test_a_variable_may_not_contradict_the_set():
    _, problems = run({"p": {**BASE, "nccl_set": "low_latency", "env": {"NCCL_PROTO": "Simple"}}})
    assert problems == [
        'profiles/p.yml: env.NCCL_PROTO: contradicts the NCCL set low_latency: "Simple" here, "LL" in host group lab'
    ]
    assert run({"p": {**BASE, "nccl_set": "low_latency", "env": {"NCCL_NTHREADS": "512"}}})[1] == []


def test_more_gpus_than_the_group_has():
    _, problems = run({"p": {**BASE, "requires": {"gpu_count": 16}}})
    assert problems == ["profiles/p.yml: requires.gpu_count: needs 16 GPUs; host group lab has 8"]
    _, problems = run({"p": {**BASE, "flags": {"tensor-parallel-size": 16}}})
    assert problems == [
        "profiles/p.yml: flags.tensor-parallel-size: tensor parallel 16 on host group lab, which has 8 GPUs"
    ]


def test_an_engine_without_a_lock():
    _, problems = run({"p": {**BASE, "engine": "sglang", "flags": {}}})
    assert problems == ["host h1: ironserve_locks.sglang: is not set, and profiles/p.yml needs it"]


def test_unknown_service():
    assert run({"p": BASE}, service="second")[1] == ['host h1: service: unknown service "second"; known: main']


def test_values_are_words_of_their_own_in_a_fixed_order():
    assert argv({"a": True, "c": "x y", "d": "0", "e": ""}, ("d",)) == ["--d", "0", "--a", "--c", "x y", "--e", ""]


def test_another_spelling_is_the_same_release():
    one, _ = run({"p": {**BASE, "flags": {"max-model-len": 4096, "off": False}}})
    two, _ = run({"p": {**BASE, "flags": {"max-model-len": "4096"}}})
    assert one["release_id"] == two["release_id"]
    assert one["flags"] == two["flags"] == {"max-model-len": "4096"}


@pytest.mark.parametrize(
    "part", [{"flags": {"x": "${tensor_parallel}0"}}, {"env": {"X": "${nope}"}}, {"flags": {"x": "a${b"}}]
)
def test_a_reference_that_would_stand_there_as_text_is_refused(part):
    _, problems = run({"p": {**BASE, **part}})
    assert "a size is a whole value of a flag" in problems[0]


@pytest.mark.parametrize(
    "part", [{"env": {"HF_TOKEN": "hf_x"}}, {"env": {"VLLM_API_KEY": "k"}}, {"flags": {"api-key": "k"}}]
)
def test_case_43_a_secret_is_refused_and_not_repeated(part):
    _, problems = run({"p": {**BASE, **part}})
    assert "looks like a secret" in problems[0]
    assert "hf_x" not in problems[0]


def test_a_name_that_only_begins_like_a_secret_is_none():
    assert (
        run({"p": {**BASE, "env": {"TOKENIZERS_PARALLELISM": "false"}, "flags": {"tokenizer-mode": "auto"}}})[1] == []
    )


def test_a_broken_profile_matters_only_where_it_is_used():
    problems = Problems()
    sources = {"p": Source("profiles/p.yml", BASE), "half": Source("profiles/half.yml", None, "x")}
    assert resolve_host("h1", "", "p", SITE, sources, {"vllm": LOCK}, problems)
    assert problems.found == []
    assert resolve_host("h1", "", "half", SITE, sources, {"vllm": LOCK}, problems) == []
    assert problems.found == ["profiles/half.yml: cannot be read: x"]


def test_wrong_values_come_with_the_wrong_keys_in_one_list():
    profile = {**BASE, "flg": 1, "nccl_set": "fast", "flags": {"tp": "${nope}"}, "env": {"A": "${b}"}}
    told = run({"p": profile})[1]
    assert [problem.split(":")[1].strip() for problem in told] == ["flg", "flags.tp", "nccl_set", "env.A"]


def test_whole_numbers_may_come_as_text_from_the_command_line():
    assert numbers_as_such({"ironserve_port": "8001"}) == {"ironserve_port": 8001}
    assert numbers_as_such({"ironserve_port": "eight", "ironserve_profile": "8"}) == {
        "ironserve_port": "eight",
        "ironserve_profile": "8",
    }


@pytest.mark.parametrize(
    ("listen", "asked"),
    [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("10.1.2.3", "10.1.2.3"), ("fd00::1", "[fd00::1]")],
)
def test_the_host_asks_where_the_server_listens(listen, asked):
    assert probe_address(listen) == asked


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["description", "engine", "extends", "flags", "env", "nccl_set", "requires", "startup_timeout_s", "x"]
)


@given(st.dictionaries(KEYS, ANYTHING, max_size=9))
def test_whatever_a_profile_holds_it_is_resolved_or_explained(data):
    release, problems = run({"p": data})
    assert (release is None) == bool(problems)
    if release:
        assert all(isinstance(word, str) for word in release["argv"])


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"profle": "x"}, ['-e: profle: is no variable of a run (did you mean "profile"?)']),
        ({"servce": "x"}, ['-e: servce: is no variable of a run (did you mean "service"?)']),
        ({"takeover": "ture"}, ['-e: takeover: "ture" is neither true nor false']),
        ({"accpt": "x"}, ['-e: accpt: is no variable of a run (did you mean "accept"?)']),
        ({"profile": ""}, ["-e: profile: is empty: leave it out, or give the name of a profile"]),
        (
            {"takeover": None, "release": " "},
            [
                "-e: release: is empty: leave it out, or give the id of a release, or its beginning",
                "-e: takeover: is empty: leave it out, or give true or false",
            ],
        ),
        ({"takeover": True, "profile": "x", "service": "y", "keep": 2}, []),
        ({"lab_python": "3.13", "ansible_user": "root", "ironserve_port": 1, "my_vault": "x"}, []),
    ],
)
def test_a_misspelt_variable_of_a_run_is_no_silence(extra, told):
    problems = Problems()
    check_extra_variables(extra, problems)
    assert problems.found == told
