"""Profiles: which of several values holds, how one is taken away, and what is said of names that nothing has."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.profiles import PROFILE, SETTINGS, Inventory, check_names

PARTS = """
flags: {x: own}
for_group:
  blackwell: {flags: {x: group}}
  hopper: {flags: {x: another group}}
for_host:
  h1: {flags: {x: host}}
  h2: {flags: {x: another host}}
"""
PARENT = f"extends: root\n{PARTS}"


def without(text: str, *parts: str) -> str:
    """The profile without the lines that hold one of the words."""
    return "".join(f"{line}\n" for line in text.splitlines() if not any(f" {part}" in line for part in parts))


@pytest.mark.parametrize(
    ("p", "parent", "x"),
    [
        # From high to low; every line is a profile that lacks what the line above it won by.
        ("flags: {x: child}\nfor_group: {blackwell: {flags: {x: cg}}}\nfor_host: {h1: {flags: {x: ch}}}", PARTS, "ch"),
        ("flags: {x: child}\nfor_group: {blackwell: {flags: {x: cg}}}", PARTS, "cg"),
        ("flags: {x: child}", PARTS, "child"),
        ("", PARTS, "host"),
        ("", without(PARTS, "h1"), "group"),
        ("", without(PARTS, "h1", "blackwell"), "own"),
    ],
)
def test_precedence(resolved, p, parent, x):
    release = resolved(f"extends: parent\n{p}", parent=parent)
    assert release.flags == {"x": x}


def test_a_part_is_for_its_group_and_host_only(resolved):
    assert resolved(PARTS, host="h2").flags == {"x": "another host"}
    assert resolved(PARTS, host="h3").flags == {"x": "group"}
    assert resolved(PARTS, host="h3", site={"ironserve_host_group": "hopper"}).flags == {"x": "another group"}
    assert resolved(PARTS, host="h3", site={"ironserve_host_group": "lab"}).flags == {"x": "own"}


def test_a_part_may_say_all_settings(resolved):
    release = resolved(
        "for_group: {blackwell: {env: {A: 1}, nccl_set: low_latency, requires: {gpu_count: 2}, startup_timeout_s: 9,"
        " stall_timeout_s: 8, completion_timeout_s: 7, watchdog_s: 6}}"
    )
    assert release.env == {"A": "1", "NCCL_PROTO": "LL", "NCCL_NTHREADS": "512"}
    limits = (release.startup_timeout_s, release.stall_timeout_s, release.completion_timeout_s, release.watchdog_s)
    assert limits == (9, 8, 7, 6)


def test_the_limits_have_defaults(resolved):
    release = resolved("")
    limits = (release.startup_timeout_s, release.stall_timeout_s, release.completion_timeout_s, release.watchdog_s)
    assert limits == (3600, 900, 120, 600)


def test_a_part_has_no_engine_and_no_parent_of_its_own(resolved):
    found = resolved("for_host: {h9: {engine: sglang, extends: q}}\nextends: q", q="").found
    assert [entry.split("; known")[0] for entry in found] == [
        "profiles/p.yml: for_host.h9.engine: unknown key",
        "profiles/p.yml: for_host.h9.extends: unknown key",
    ]


def test_a_mapping_is_replaced_and_not_mixed(resolved):
    assert resolved("extends: q\nflags: {x: {b: 1}}", q="flags: {x: {a: 1}}").flags == {"x": '{"b":1}'}


@pytest.mark.parametrize("nothing", ["null", "~", ""])
def test_null_removes_what_is_inherited(resolved, nothing):
    parent = "flags: {x: 1, y: 2}\nenv: {A: 1, B: 2}\nnccl_set: low_latency\nrequires: {gpu_count: 9}\nwatchdog_s: 5\n"
    child = "extends: q\nflags:\n  x: NO\nenv:\n  A: NO\nnccl_set: NO\nrequires:\n  gpu_count: NO\nwatchdog_s: NO\n"
    release = resolved(child.replace("NO", nothing), q=parent)
    assert release.flags == {"y": "2"}
    assert release.env == {"B": "2"}
    assert release.watchdog_s == 600


def test_what_a_parent_says_for_one_group_may_be_removed_on_all(resolved):
    for group in ("blackwell", "hopper"):
        site = {"ironserve_host_group": group}
        release = resolved("extends: q\nflags: {x: ~}", q="for_group: {hopper: {flags: {x: 1}}}", site=site)
        assert release.flags == {}


def test_what_was_removed_may_be_said_again(resolved):
    assert resolved("extends: q\nflags: {x: 2}", q="extends: r\nflags: {x: ~}", r="flags: {x: 1}").flags == {"x": "2"}


def test_a_part_may_remove_what_its_profile_says(resolved):
    text = "flags: {x: 1}\nenv: {A: 1}\nfor_host: {h1: {flags: {x: ~}, env: {A: ~}}}"
    assert (resolved(text).flags, resolved(text).env) == ({}, {})
    assert resolved(text, host="h2").flags == {"x": "1"}


def test_a_removal_of_what_nobody_says_is_a_mistake(resolved):
    child = "extends: q\nflags: {enforce-eagr: ~, y: 1}\nenv: {OMP_NUM_THREAD: ~}\nfor_host: {h9: {nccl_set: ~}}"
    assert resolved(child, q="flags: {enforce-eager: true}\nenv: {OMP_NUM_THREADS: 1}").found == [
        "profiles/p.yml: flags.enforce-eagr: null removes what is inherited, and nothing is "
        '(did you mean "enforce-eager"?)',
        "profiles/p.yml: env.OMP_NUM_THREAD: null removes what is inherited, and nothing is "
        '(did you mean "OMP_NUM_THREADS"?)',
        "profiles/p.yml: for_host.h9.nccl_set: null removes what is inherited, and nothing is",
    ]


def test_false_leaves_a_flag_out_whoever_says_it(resolved):
    assert resolved("extends: q\nflags: {x: false}", q="flags: {x: true}").flags == {}
    assert resolved("flags: {x: false}").flags == {}


@pytest.mark.parametrize("key", ["description", "extends", "engine", "flags", "env", "requires", "for_group"])
def test_null_is_no_value_of_other_keys(resolved, key):
    assert any(entry.endswith("got nothing") for entry in resolved(f"{key}:\n").found)


def test_a_bool_in_the_environment_is_to_be_quoted(resolved):
    assert resolved("env: {A: true}").found == [
        'profiles/p.yml: env.A: expected text or a number, got true/false: True: write it in quotes, "1" or "true", '
        "as its reader wants it"
    ]
    assert resolved('env: {A: "true", B: 1, C: 0.5}').env == {"A": "true", "B": "1", "C": "0.5"}


def test_a_key_that_is_given_twice_is_named_with_its_line(resolved):
    text = "flags:\n  x: 1\n  y: {a: 1, a: 2}\n  x: 2\nfor_host:\n  h1: {env: {A: 1}}\n  h1: {env: {A: 2}}\n"
    assert resolved(text).found == [
        "profiles/p.yml:5: flags.y.a: is given twice",
        "profiles/p.yml:6: flags.x: is given twice",
        "profiles/p.yml:9: for_host.h1: is given twice",
    ]
    assert resolved("extends: q", q=text).found == [entry.replace("p.yml", "q.yml") for entry in resolved(text).found]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flags: {", "profiles/p.yml:3: not YAML: "),
        ("flags: &a {x: *a}", "profiles/p.yml:3: not YAML: an anchor inside of itself"),
        ("flags: {x: " + "[" * 5000 + "]" * 5000 + "}", "profiles/p.yml: not YAML: maximum recursion depth"),
        ("flags: {x: " + "9" * 5000 + "}", "profiles/p.yml: not YAML: Exceeds the limit"),
    ],
)
def test_a_profile_that_is_no_yaml(resolved, text, said):
    found = resolved(text).found
    assert len(found) == 1
    assert found[0].startswith(said)


@pytest.mark.parametrize("part", ["for_group: {hopper: {X}}", "for_host: {h9: {X}}"])
def test_parts_for_others_are_checked_too(resolved, part):
    prefix = ".".join(part.replace(":", "").replace("{", "").split()[:2])
    wrong = "flags: {tp_size: 1, port: 1, api-key: k, y: \"{'a': True}\"}, env: {HF_TOKEN: t, A: true}, nccl: x"
    told = "\n".join(resolved(part.replace("X", wrong)).found)
    for expected in (
        'flags.tp_size: write the flag without dashes in front and with dashes inside: "tp-size"',
        "flags.port: is set by the service",
        "flags.api-key: looks like a secret",
        "flags.y: {'a': True}: looks like JSON",
        "env.HF_TOKEN: looks like a secret",
        "env.A: expected text",
        "nccl: unknown key",
    ):
        assert f"profiles/p.yml: {prefix}.{expected}" in told


def test_a_problem_names_the_file_that_says_it(resolved):
    parent = "nccl_set: fast\nflags: {x: '${nope}', tensor-parallel-size: 16}\nrequires: {gpu_count: 9}\nenv: {1: a}"
    assert [entry.split(": ")[:2] for entry in resolved("extends: q\nflags: {y: 1}", q=parent).found] == [
        ["profiles/q.yml", "flags.x"],
        ["profiles/q.yml", "nccl_set"],
        ["profiles/q.yml", "env.1"],
        ["profiles/q.yml", "requires.gpu_count"],
    ]


@pytest.mark.parametrize("name", ["x y", "x=1", "x\n"])
def test_a_flags_name_holds_no_value(resolved, name):
    (problem,) = resolved(f"flags: {{{name!r}: 1}}".replace("'", '"')).found
    assert "flags." in problem


def test_a_dotted_flag_of_vllm_keeps_the_names_after_the_dot(resolved):
    assert resolved("flags: {compilation-config.cudagraph_mode: NONE}").flags == {
        "compilation-config.cudagraph_mode": "NONE"
    }


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("for_group: {blackwel: {}}", '(did you mean "blackwell"?)'),
        ("for_host: {gpu-aO1: {}}", '(did you mean "gpu-a01"?)'),
        (
            "for_group: {rack1: {}}",
            "is a group, and no host group: for_group goes by ironserve_host_group, here blackwell",
        ),
        ("for_group: {all: {}}", "is a group, and no host group"),
        ("for_group: {blackwell: {}, mi300: {}}", ""),  # a group of another inventory
        ("for_host: {gpu-a01: {}, gpu-a77: {}, storage: {}}", ""),  # a machine of the same row, another machine
    ],
)
def test_a_part_that_would_be_passed_over_unseen(resolved, part, said):
    problems = Problems()
    sources = resolved("extends: q", q=part).sources
    groups, hosts = ["all", "blackwell", "hopper", "rack1"], ["gpu-a01", "gpu-a02"]
    check_names("p", sources, Inventory(groups, hosts, "blackwell", ["blackwell", "rack1"]), problems)
    assert len(problems.found) == bool(said)
    assert said in "".join(problems.found)


def test_a_profile_in_another_order_is_the_same_release(resolved):
    one = resolved("flags: {x: {a: 1, b: 2}, y: 1}\nenv: {A: 1, B: 2}")
    two = resolved("env: {B: 2, A: 1}\nflags: {y: 1, x: {b: 2, a: 1}}")
    assert one.release_id == two.release_id
    assert one.argv == two.argv


def test_every_setting_says_what_it_is():
    for key in (*PROFILE.keys.values(), *SETTINGS.values()):
        assert key.about
