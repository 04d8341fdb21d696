"""The report of a preflight as a person reads it."""

from __future__ import annotations

from ansible.module_utils.ironserve.report import considered, refusal, text


def group(severity="error", accepted=False, **more):
    told = {
        "rule": "nccl-value", "severity": severity, "where": "profiles/a.yml", "key": "env.NCCL_NTHREADS",
        "text": '"abc" is no number', "why": "NCCL turns it into 0.", "do": "Write a number.", "source": ["https://a"],
        "hosts": ["h1", "h2"], "accepted": accepted, "overrulable": True,
    }  # fmt: skip
    return {**told, **more}


def test_a_finding_is_one_line_that_says_it_and_then_why_what_to_do_and_where():
    assert text([group()], ["h1", "h2", "h3"]).splitlines() == [
        "3 hosts judged: 1 error",
        'error: profiles/a.yml: env.NCCL_NTHREADS: "abc" is no number  [nccl-value]',
        "    why:    NCCL turns it into 0.",
        "    do:     Write a number.",
        "    source: https://a",
        "    hosts:  h1, h2",
    ]


def test_where_only_what_stops_a_deploy_is_told_nothing_accepted_is_told_again():
    assert text([group(accepted=True)], ["h1"], "errors") == ""
    told = text([group(accepted=True), group(rule="model-missing")], ["h1"], "errors")
    assert "model-missing" in told
    assert "nccl-value" not in told


def test_what_is_accepted_is_told_as_such():
    told = text([group(accepted=True), group("warning")], ["h1"])
    assert told.startswith("1 host judged: 1 error (1 accepted), 1 warning\nerror, accepted: profiles/a.yml")


def test_a_deploy_counts_notes_and_does_not_print_them():
    groups = [group("warning"), group("note", text="worth knowing")]
    assert "1 warning, 1 note" in text(groups, ["h1"], "warnings")
    assert "worth knowing" not in text(groups, ["h1"], "warnings")
    assert "worth knowing" in text(groups, ["h1"])


def test_a_deploy_with_nothing_but_notes_prints_nothing():
    assert text([group("note")], ["h1"], "warnings") == ""
    assert text([], ["h1"]) == "1 host judged: nothing found"


def test_where_only_errors_are_told_a_warning_is_silent():
    assert text([group("warning")], ["h1"], "errors") == ""
    assert "is no number" in text([group()], ["h1"], "errors")


def test_rules_that_were_considered_are_one_table_for_hosts_that_are_alike():
    silent = {"rule": "a", "fired": False, "why": "gpu_family is sm90, the rule is for sm120"}
    fired = {"rule": "b", "fired": True, "why": "attention-backend is flashinfer"}
    told = considered({"h1": {"main": [silent, fired]}, "h2": {"chat": [silent, fired]}, "h3": {"main": [silent]}})
    first, second = told.strip().split("\n\n\n")
    assert first.splitlines()[0] == "Rules considered for h1, h2 (chat)"
    assert first.splitlines()[2].split() == ["b", "fired", "attention-backend", "is", "flashinfer"]
    assert second.splitlines()[0] == "Rules considered for h3"


def test_why_a_deploy_stops_is_a_line_with_the_rules_that_nobody_accepted():
    groups = [group(), group(rule="host-acs"), group(rule="flag-unknown", accepted=True), group("warning", rule="x")]
    told = refusal(groups, "a.json")
    assert told.startswith("nothing was touched: host-acs, nccl-value stand against it on h1, h2, see the report above")
    assert "-e accept=RULE,..." in told


def test_nobody_is_told_to_overrule_what_cannot_be():
    assert "accept=" not in refusal([group(rule="preflight", overrulable=False)], "a.json")
