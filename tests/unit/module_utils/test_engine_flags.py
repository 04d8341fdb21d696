"""The answer about a release's flags, made of what a parser said; and the cache that keeps it."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.ironserve import engine_flags

DESCRIPTION = {
    "engine": "vllm",
    "engine_version": "1",
    "abbreviates": True,
    "options": [
        {"strings": ["--size", "-s"], "dest": "size", "deprecated": False, "text": ""},
        {"strings": ["--size-of-page"], "dest": "page", "deprecated": True, "text": "Use --page."},
        {"strings": ["--config"], "dest": "config", "deprecated": False, "text": ""},
        {"strings": ["--idle"], "dest": "idle", "deprecated": False, "text": ""},
    ],
    "unread": ["idle"],
    "variables": ["VLLM_LEVEL", "HF_HUB_OFFLINE", "OTHER_DEVICE_0"],
}
EMPTY = {
    "unknown": [],
    "abbreviated": [],
    "deprecated": [],
    "without_effect": [],
    "invalid": [],
    "unknown_variables": [],
}


def release(tmp_path=None, flags=None, env=None):
    return {
        "service": "main",
        "engine": "vllm",
        "environment": str(tmp_path / "engines" / "e-1") if tmp_path else "/nowhere",
        "lock": {"id": "e-1"},
        "flags": flags or {},
        "env": env or {},
    }


def keep(folder, flags, faults=()):
    """Have the answer for these flags in the cache."""
    (folder / "e-1").mkdir(parents=True, exist_ok=True)
    for name, content in (("parser", DESCRIPTION), (engine_flags.digest(flags), list(faults))):
        (folder / "e-1" / engine_flags._name(name)).write_text(json.dumps(content))


def test_keys_of_one_json_value_are_parsed_together_and_each_other_flag_alone():
    flags = {"config.b": "2", "size": "1", "config.a": "-1", "idle": True, "list": ["1", "2"]}
    assert engine_flags.groups(flags) == [
        ("config.a", ["--config.a=-1", "--config.b", "2"]),
        ("idle", ["--idle"]),
        ("list", ["--list", "1", "2"]),
        ("size", ["--size", "1"]),
    ]


@pytest.mark.parametrize(
    ("flags", "faults", "expected"),
    [
        ({"size": "1"}, [], {}),
        ({"config.level": "1"}, [], {}),
        ({"siez": "1"}, [{"flag": "siez", "text": "no"}], {"unknown": [{"flag": "siez", "suggestion": "size"}]}),
        ({"zzz": "1"}, [], {"unknown": [{"flag": "zzz", "suggestion": ""}]}),
        ({"conf.level": "1"}, [], {"abbreviated": [{"flag": "conf.level", "meant": ["config"]}]}),
        ({"s": "1"}, [], {"abbreviated": [{"flag": "s", "meant": ["size", "size-of-page"]}]}),
        ({"size-of-page": "1"}, [], {"deprecated": [{"flag": "size-of-page", "text": "Use --page."}]}),
        ({"idle": True}, [], {"without_effect": ["idle"]}),
        ({"size": "x"}, [{"flag": "size", "text": "no int"}], {"invalid": [{"flag": "size", "text": "no int"}]}),
        ({"size": "1"}, [{"flag": "", "text": "not with"}], {"invalid": [{"flag": "", "text": "not with"}]}),
    ],
)  # fmt: skip
def test_each_flag_is_told_once_by_the_gravest_that_is_wrong_with_it(flags, faults, expected):
    told = engine_flags.answer(DESCRIPTION, faults, release(flags=flags))
    assert told == {"state": "known", "reason": "", "engine_version": "1", **EMPTY, **expected}


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("VLLM_LEVL", "VLLM_LEVEL"),
        ("VLLM_SOMETHING_ELSE", ""),
        ("HF_HUB_OFFLIEN", "HF_HUB_OFFLINE"),
        ("VLLM_LEVEL", None),
        ("OTHER_DEVICE_1", None),
        ("MY_OWN", None),
        ("NCCL_PROTOO", None),
    ],
)
def test_only_a_variable_of_the_engine_or_nearly_a_known_one_is_told(name, suggestion):
    told = engine_flags.answer(DESCRIPTION, [], release(env={name: "1"}))["unknown_variables"]
    assert told == ([] if suggestion is None else [{"name": name, "suggestion": suggestion}])


def test_the_cache_answers_for_the_flags_that_were_asked_whatever_the_service(tmp_path):
    cache = tmp_path / "flags"
    keep(cache, {"size": "x"}, [{"flag": "size", "text": "no int"}])
    told = engine_flags.cached(release(tmp_path, {"size": "x"}), cache)
    assert (told["state"], told["invalid"]) == ("known", [{"flag": "size", "text": "no int"}])
    assert engine_flags.cached(release(tmp_path, {"size": "y"}), cache)["state"] == "pending"


def test_without_answer_and_environment_nothing_is_verifiable_yet(tmp_path):
    wanted, cache = release(tmp_path), tmp_path / "none" / "flags"
    assert engine_flags.cached(wanted, cache) == {
        "state": "pending", "reason": "its environment is not on the host yet", "engine_version": "", **EMPTY,
    }  # fmt: skip
    engine_flags.interpreter(wanted).parent.mkdir(parents=True)
    engine_flags.interpreter(wanted).touch()
    assert engine_flags.cached(wanted, cache)["reason"] == "its parser was not asked yet"
    assert engine_flags.ask([release(tmp_path / "other")], "nobody", cache=cache)["main"]["state"] == "pending"


def test_a_user_who_is_not_there_yet_is_named(tmp_path):
    wanted = release(tmp_path)
    engine_flags.interpreter(wanted).parent.mkdir(parents=True)
    engine_flags.interpreter(wanted).touch()
    told = engine_flags.ask([wanted], "nobody-of-this-name", cache=tmp_path / "flags")["main"]
    assert (told["state"], told["reason"]) == ("failed", "there is no user nobody-of-this-name on this host yet")


def test_no_answer_makes_files_of_its_own_choice(tmp_path, monkeypatch):
    wanted, cache = release(tmp_path, {"size": "1"}), tmp_path / "flags"
    engine_flags.interpreter(wanted).parent.mkdir(parents=True)
    engine_flags.interpreter(wanted).touch()
    told = {"description": DESCRIPTION, "faults": {"x/../../../evil": [], engine_flags.digest({"size": "1"}): []}}
    monkeypatch.setattr(engine_flags, "probe", lambda *_: told)
    assert engine_flags.ask([wanted], "nobody", cache=cache)["main"]["state"] == "known"
    assert sorted(path.name for path in tmp_path.rglob("*.json")) == sorted(
        engine_flags._name(name) for name in ("parser", engine_flags.digest({"size": "1"}))
    )


def test_a_file_of_the_cache_that_was_cut_off_is_not_believed(tmp_path):
    cache = tmp_path / "flags"
    keep(cache, {})
    file = next((cache / "e-1").glob("*-parser.json"))
    file.write_text(json.dumps(DESCRIPTION)[:-5])
    assert engine_flags.cached(release(tmp_path), cache)["state"] == "failed"


def test_a_secret_is_never_part_of_a_question():
    """A release has only the names of secrets, and its flags are all that a parser is asked about."""
    wanted = {**release(flags={"size": "1"}), "secrets": ["api-key"], "argv": ["--config", "/etc/ironserve/main.yml"]}
    assert engine_flags.groups(wanted["flags"]) == [("size", ["--size", "1"])]
