"""Whom a cleanup ends: three sources merged by pid, and a word for each holder."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import victims
from ansible.module_utils.ironserve.gpus import Gpu, GpuProcess, Reading
from ansible.module_utils.ironserve.processes import Table
from ansible.module_utils.ironserve.victims import Scope

sys.path.insert(0, str(Path(__file__).parent))
from fake_proc import MONITOR_FDS, fake_process

SESSION = "0::/user.slice/user-0.slice/session-3.scope"
ME, SHELL = 900, 890


def uuid(number: int) -> str:
    return f"GPU-{number}"


def gpus(*lists: dict[int, int | None] | None) -> Reading:
    """GPUs 0, 1, ... with their process lists: MiB by pid, or None where the driver does not tell."""
    return Reading(
        "nvml",
        tuple(
            Gpu(number, uuid(number), minor=number,
                processes=None if listed is None else tuple(GpuProcess(pid, "C", mib) for pid, mib in listed.items()))
            for number, listed in enumerate(lists)
        ),
    )  # fmt: skip


def mapping(*minors: int) -> str:
    return "".join(f"7f2b1000{n}000-7f2b1000{n}fff rw-s 00000000 00:06 303    /dev/nvidia{n}\n" for n in minors)


class Host:
    """A fake /proc with systemd, sshd, and this run under it, whose command names an engine (ansible#15800)."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        fake_process(proc, 1, parent=0, comm="systemd", cgroup="0::/init.scope")
        fake_process(proc, 800, comm="sshd", cgroup="0::/system.slice/ssh.service")
        fake_process(proc, SHELL, parent=800, session=SHELL, comm="sh", cgroup=SESSION,
                     argv=["sh", "-c", "python3 /root/.ansible/tmp/ansible-tmp-1/AnsiballZ_x.py"])  # fmt: skip
        fake_process(proc, ME, parent=SHELL, session=SHELL, cgroup=SESSION,
                     argv=["python3", "-m", "sglang.launch_server", "vllm serve"], fds=["/dev/nvidia0"])  # fmt: skip

    def add(self, pid: int, *argv: str, **more) -> None:
        more.setdefault("cgroup", SESSION)
        more.setdefault("comm", argv[0].rsplit("/", 1)[-1][:15])
        fake_process(self.proc, pid, argv=argv, **more)

    def find(self, reading: Reading, **scope):
        scope.setdefault("gpus", frozenset(gpu.uuid for gpu in reading.gpus))
        return victims.find(Table(self.proc), reading, Scope(**scope), ME)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def kinds(found) -> dict[int, str]:
    return {held.process.pid: held.kind for held in found.held}


def targets(found) -> set[int]:
    return {process.pid for process in found.targets}


def test_case_11_orphans_are_found_by_gpus_and_titles_and_go_as_a_whole(host):
    host.add(3990, "-bash", session=3990, comm="bash")
    host.add(4002, "VLLM::EngineCore", parent=3990, session=3990)
    host.add(4003, "VLLM::Worker_TP0", parent=4002, session=3990)
    host.add(4004, "VLLM::Worker_TP1", parent=4002, session=3990)
    for leftovers_only in (False, True):
        found = host.find(gpus({4003: 1000}, {4004: 1000}), leftovers_only=leftovers_only)
        assert kinds(found)[4003] == kinds(found)[4004] == "victim"
        assert targets(found) == {4002, 4003, 4004}
        assert found.targets[0].pid == 4002  # whoever would start a rank again goes first


PROTECTED = ["nvidia-persistenced", "nv-hostengine", "dcgm-exporter", "nv-fabricmanager", "Xorg", "gnome-shell",
             "nvidia-smi"]  # fmt: skip


@pytest.mark.parametrize("consent", [False, True])
def test_case_14_holders_by_right_are_never_signalled(host, consent):
    for number, name in enumerate(PROTECTED):
        host.add(100 + number, f"/usr/bin/{name}", fds=MONITOR_FDS, maps=mapping(0))
    host.add(4001, "sglang::scheduler", fds=MONITOR_FDS, maps=mapping(0))
    everybody = {4001: 900, **{100 + number: 10 for number in range(len(PROTECTED))}}
    found = host.find(gpus(everybody), consent_foreign=consent)
    assert targets(found) == {4001}
    assert sorted(held.process.pid for held in found.of("protected")) == list(range(100, 100 + len(PROTECTED)))


def test_case_14_a_name_in_the_command_protects_nobody_and_the_executable_counts_as_well(host):
    host.add(4001, "sglang::scheduler", "nvidia-smi", fds=MONITOR_FDS)
    host.add(4002, "python3", comm="worker", exe="/usr/bin/dcgm-exporter", fds=MONITOR_FDS)
    found = kinds(host.find(gpus({4001: 1, 4002: 1})))
    assert (found[4001], found[4002]) == ("victim", "protected")


def test_case_14_what_is_protected_can_be_extended_and_taken_back_only_by_name(host):
    host.add(100, "acme-exporter", fds=MONITOR_FDS)
    host.add(101, "gpud", fds=MONITOR_FDS, maps=mapping(0))
    reading = gpus({101: 5})
    assert kinds(host.find(reading))[100] == "foreign"
    more = host.find(reading, protected=Scope(frozenset()).protected | {"acme-exporter"})
    assert kinds(more)[100] == "protected"
    less = host.find(reading, protected=Scope(frozenset()).protected - {"gpud"}, consent_foreign=True)
    assert kinds(less)[101] == "victim"
    assert targets(less) == {101}


def test_case_48_this_run_and_what_carries_it_are_never_signalled(host):
    host.add(910, "sglang::scheduler", parent=ME, session=SHELL, fds=MONITOR_FDS)  # a child of this run, in its session
    host.add(950, "python3", "/root/.ansible/tmp/ansible-tmp-2/x.py", "sglang.launch_server", fds=MONITOR_FDS)
    found = host.find(gpus({ME: 10, 910: 10, 950: 10}), consent_foreign=True)
    assert kinds(found) == {ME: "self", 910: "self", 950: "self"}
    assert targets(found) == set()


def test_case_21_a_zombie_gets_no_signal_and_its_living_child_goes(host):
    host.add(31000, "run.sh")
    host.add(31794, "VLLM::EngineCore", parent=31000, state="Z")
    host.add(31801, "VLLM::Worker_TP0", parent=31794, fds=["/dev/nvidia0"])
    found = host.find(gpus({31794: 5000}))
    assert targets(found) == {31801}
    assert found.zombies == {31794: (uuid(0),)}


def test_a_zombie_leader_with_a_living_thread_holds_and_goes(host):
    host.add(20, "x", comm="VLLM::Worker_TP", state="Z", threads=2, thread=21, fds=["/dev/nvidia0"])
    (host.proc / "20" / "cmdline").write_text("")
    found = host.find(gpus({}))
    assert kinds(found)[20] == "victim"
    assert targets(found) == {20}


def test_a_pid_that_proc_does_not_show_is_told(host):
    assert host.find(gpus({77777: 300})).hidden == {77777: (uuid(0),)}


def test_the_drivers_list_says_where_and_a_mapping_only_where_it_may(host):
    """Without CUDA_VISIBLE_DEVICES a job on GPU 1 has all GPUs mapped (measured: docs/evidence/gpu-holders.md)."""
    host.add(300, "VLLM::Worker_TP0", fds=["/dev/nvidia0", "/dev/nvidia1"], maps=mapping(0, 1))
    beside = host.find(gpus({}, {300: 5000}), gpus=frozenset({uuid(0)}))
    assert kinds(beside)[300] == "out_of_scope"
    untold = host.find(gpus(None, None), gpus=frozenset({uuid(0)}))
    assert kinds(untold)[300] == "victim"


def test_a_server_that_only_has_devices_open_is_where_its_ranks_are(host):
    """SGLang's main process asks NVML, and so has every GPU open."""
    host.add(400, "python3", "-m", "sglang.launch_server", fds=["/dev/nvidia0", "/dev/nvidia1"])
    host.add(401, "sglang::scheduler", parent=400, fds=["/dev/nvidia0", "/dev/nvidia1"])
    beside = host.find(gpus({}, {401: 5000}), gpus=frozenset({uuid(0)}))
    assert kinds(beside)[400] == "out_of_scope"
    assert targets(beside) == set()
    here = host.find(gpus({}, {401: 5000}), gpus=frozenset({uuid(1)}))
    assert targets(here) == {400, 401}


def test_a_group_of_ranks_goes_as_a_whole_though_half_of_it_is_on_other_gpus(host):
    for rank in range(2):
        host.add(500 + rank, f"sglang::scheduler_TP{rank}", session=500)
    found = host.find(gpus({500: 1}, {501: 1}), gpus=frozenset({uuid(0)}))
    assert targets(found) == {500, 501}
    assert kinds(found)[501] == "victim"


@pytest.mark.parametrize(
    ("cgroup", "kind"),
    [
        ("0::/system.slice/ironserve-main.service", "victim"),
        ("0::/system.slice/ironserve-embed.service", "out_of_scope"),
        ("0::/system.slice/ironserve-old.service", "victim"),  # it does not run: what is left of it is nobody's
        ("0::/system.slice/my-vllm.service", "foreign"),
        (f"0::/system.slice/docker-{'a' * 64}.scope", "foreign"),
        ("0::/kubepods/burstable/pod1a2b3c4d-5e6f/x", "foreign"),
        ("0::/slurm/uid_1000/job_4711/step_0", "foreign"),
        (SESSION, "victim"),
    ],
)
def test_whose_a_rank_is_decides(host, cgroup, kind):
    host.add(600, "VLLM::Worker_TP0", cgroup=cgroup)
    units = frozenset({"ironserve-embed.service"})
    found = host.find(gpus({600: 1}), unit="ironserve-main.service", running_units=units)
    assert kinds(found)[600] == kind
    assert bool(found.targets) is (kind == "victim")


@pytest.mark.parametrize("parent", ["raylet", "supervisor", "acme-launch"])
def test_a_deploy_spares_ranks_whose_parent_is_not_known_to_take_in_orphans(host, parent):
    host.add(600, parent)
    host.add(601, "sglang::scheduler", parent=600)
    assert targets(host.find(gpus({601: 1}), leftovers_only=True)) == set()
    assert targets(host.find(gpus({601: 1}))) == {601}  # a person is shown it first


def test_a_deploy_spares_what_the_service_user_runs_by_hand(host):
    host.add(610, "python3", "bench.py", uid=64123)
    host.add(611, "worker", uid=64123)
    reading = gpus({610: 1, 611: 1})
    assert targets(host.find(reading, service_user="64123", leftovers_only=True)) == set()
    assert targets(host.find(reading, service_user="64123")) == {610, 611}


def test_an_engine_that_serves_is_spared_where_only_leftovers_are_to_go(host):
    host.add(700, "python3", "/v/bin/vllm", "serve", "/m")
    host.add(701, "VLLM::EngineCore", parent=700)
    asked = host.find(gpus({701: 1}))
    assert targets(asked) == {700, 701}
    deploy = host.find(gpus({701: 1}), leftovers_only=True)
    assert kinds(deploy)[701] == "foreign"
    assert targets(deploy) == set()


def test_anybody_else_is_foreign_and_goes_only_with_consent_and_a_context(host):
    host.add(750, "python3", "train.py", fds=["/dev/nvidia0"], maps=mapping(0))
    host.add(751, "data-loader", parent=750)
    host.add(752, "acme-monitor", fds=MONITOR_FDS)
    reading = gpus({750: 5})
    assert kinds(host.find(reading)) == {750: "foreign", 752: "foreign", ME: "self"}
    assert targets(host.find(reading)) == set()
    agreed = host.find(reading, consent_foreign=True)
    assert targets(agreed) == {750, 751}
    assert kinds(agreed) == {750: "victim", 751: "victim", 752: "foreign", ME: "self"}  # as the person is shown it


def test_consent_does_not_reach_an_engine_on_other_gpus_that_a_foreign_process_started(host):
    host.add(750, "python3", "batch.py")
    host.add(751, "VLLM::EngineCore", parent=750)
    host.add(752, "VLLM::Worker_TP0", parent=751)
    found = host.find(gpus({750: 5}, {752: 5}), gpus=frozenset({uuid(0)}), consent_foreign=True)
    assert targets(found) == {750}
    assert kinds(found)[752] == "out_of_scope"


def test_nobody_ends_who_came_after_the_question(host):
    host.add(760, "python3", "/v/bin/vllm", "serve", "/m")
    host.add(761, "VLLM::EngineCore", parent=760)
    host.add(770, "python3", "/v/bin/vllm", "serve", "/m")
    host.add(771, "VLLM::EngineCore", parent=770)
    host.add(772, "VLLM::Worker_TP0", parent=771)  # started since by somebody who was agreed on
    reading = gpus({761: 5}, {771: 5}, {772: 5})
    found = host.find(reading, agreed=frozenset({(770, 770), (771, 771), (761, 4711)}))
    assert targets(found) == {770, 771, 772}
    assert kinds(found)[761] == "foreign"
    assert "came after the question" in next(held.why for held in found.held if held.process.pid == 761)
    assert targets(host.find(reading, agreed=frozenset())) == set()


def test_the_service_users_processes_are_ours(host):
    host.add(760, "worker", uid=64123)
    found = host.find(gpus({760: 1}), service_user="64123")
    assert kinds(found)[760] == "victim"
    assert targets(found) == {760}
    assert kinds(host.find(gpus({760: 1}), service_user="root"))[760] == "foreign"


def test_case_17_memory_that_is_not_told_is_not_none(host):
    host.add(770, "VLLM::Worker_TP0")
    found = host.find(gpus({770: None}, {770: 20}))
    (held,) = found.of("victim")
    assert held.memory_mib == {uuid(0): None, uuid(1): 20}
    assert victims.as_result(replace(held, memory_mib={uuid(0): None}), 10)["memory_mib"] is None


def test_a_result_holds_no_secret(host):
    host.add(780, "python3", "/v/bin/vllm", "serve", "/m", "--api-key", "abc123", "--hf-token=hf_abcdefghi")
    found = host.find(gpus({780: 1}))
    told = victims.as_result(found.of("victim")[0], 10)
    assert "abc123" not in str(told)
    assert "abcdefghi" not in str(told)
    assert told["argv"][:4] == ["python3", "/v/bin/vllm", "serve", "/m"]


def test_an_orphan_that_keeps_only_shared_memory_goes_and_others_with_shared_memory_do_not(host):
    host.add(800 + 1, "sglang::detokenizer", fds=["/dev/shm/psm_1a2b"])
    host.add(802, "sglang::detokenizer", fds=["/dev/shm/pulse-shm-1"])
    host.add(803, "python3", "x.py", fds=["/dev/shm/psm_1a2c"])
    host.add(810, "python3", "-m", "sglang.launch_server")
    host.add(811, "sglang::detokenizer", parent=810, fds=["/dev/shm/psm_1a2d"])
    found = host.find(gpus({}))
    assert targets(found) == {801}
    assert found.of("victim")[0].seen == ("shm",)
