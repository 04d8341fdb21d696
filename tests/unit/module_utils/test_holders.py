"""Holders: whom a process belongs to, what is taken over and how, and what is said about it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import holders, processes
from ansible.module_utils.ironserve.holders import Owner

sys.path.insert(0, str(Path(__file__).parent))
from fake_proc import CUDA, INFORMATION, MONITOR_FDS, fake_process

ID = "3f4a9c0de1b25f6879a0c1d2e3f405162738495a6b7c8d9e0f1a2b3c4d5e6f70"
UUID = "GPU-81e540af-1718-43f5-3b6a-791b20ddf894"


@pytest.mark.parametrize(
    ("cgroup", "owner"),
    [
        ("0::/system.slice/vllm.service", Owner("unit", "vllm.service")),
        ("0::/system.slice/system-vllm.slice/vllm@8001.service", Owner("unit", "vllm@8001.service")),
        ("0::/ai.slice/my\\x2dvllm.service/payload", Owner("unit", "my\\x2dvllm.service")),
        ("0::/machine.slice/systemd-nspawn@web.service/payload/system.slice/vllm.service",
         Owner("unit", "systemd-nspawn@web.service")),
        ("12:pids:/x\n1:name=systemd:/system.slice/a.service\n0::/", Owner("unit", "a.service")),
        ("12:pids:/system.slice/a.service\n1:name=systemd:/system.slice/a.service\n0::/system.slice/a.service",
         Owner("unit", "a.service")),
        ("0::/system.slice/ironserve-main.service", Owner("service", "ironserve-main.service")),
        (f"0::/system.slice/docker-{ID}.scope", Owner("container", ID, 0, "docker")),
        (f"0::/system.slice/docker-{ID}.scope/system.slice/vllm.service", Owner("container", ID, 0, "docker")),
        (f"0::/docker/{ID}", Owner("container", ID, 0, "docker")),
        (f"11:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/", Owner("container", ID, 0, "docker")),
        (f"11:memory:/docker/{ID}\n1:name=systemd:/system.slice/docker.service\n0::/system.slice/docker.service",
         Owner("container", ID, 0, "docker")),
        (f"0::/system.slice/docker.service/docker/{ID}", Owner("container", ID, 0, "docker")),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope",
         Owner("container", ID, 1000, "docker")),
        (f"0::/machine.slice/libpod-{ID}.scope/container", Owner("container", ID, 0, "podman")),
        (f"0::/machine.slice/libpod-conmon-{ID}.scope", Owner("container", ID, 0, "podman")),
        (f"0::/libpod_parent/libpod-{ID}", Owner("container", ID, 0, "podman")),
        (f"0::/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-{ID}.scope/container",
         Owner("container", ID, 1001, "podman")),
        (f"0::/system.slice/vllm.service/libpod-payload-{ID}", Owner("unit", "vllm.service")),
        (f"0::/system.slice/nerdctl-{ID}.scope", Owner("container", ID, 0, "nerdctl")),
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1a2b3c4d_5e6f.slice/cri-containerd-{ID}.scope",
         Owner("kubernetes", "1a2b3c4d-5e6f")),
        (f"0::/kubepods/burstable/pod1a2b3c4d-5e6f/{ID}", Owner("kubernetes", "1a2b3c4d-5e6f")),
        (f"0::/system.slice/crio-{ID}.scope", Owner("kubernetes")),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", Owner("slurm", "4711")),
        ("9:memory:/slurm/uid_1000/job_4711/step_batch\n1:name=systemd:/system.slice/slurmd.service\n0::/",
         Owner("slurm", "4711")),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service",
         Owner("user_unit", "vllm.service", 1000)),
        ("0::/user.slice/user-1000.slice/user@1000.service/tmux-spawn-1a-2b.scope",
         Owner("process", "tmux-spawn-1a-2b.scope", 1000)),
        ("0::/user.slice/user-1000.slice/session-3.scope", Owner("process", "session-3.scope")),
        ("0::/system.slice/ssh.service", Owner("process", "ssh.service")),
        ("0::/system.slice/cron.service", Owner("process", "cron.service")),
        ("0::/system.slice/run-r0123.scope", Owner("process", "run-r0123.scope")),
        ("0::/init.scope", Owner("unit", "init.scope")),
        ("0::/", Owner("process")),
        ("0::/lxc.payload.web/system.slice/vllm.service", Owner("machine", "lxc.payload.web")),
        ("0::/machine.slice/machine-vm.scope/libvirt/vcpu0", Owner("machine", "machine-vm.scope")),
        (f"0::/default/{ID}", Owner("machine", ID)),
        ("0::/nomad.slice/share.slice/1a2b.vllm.scope", Owner("machine", "nomad.slice")),
        ("0::/htcondor/job_1", Owner("machine", "htcondor")),
        ("", Owner("process")),
    ],
)  # fmt: skip
def test_owner_of_a_process(cgroup, owner):
    assert holders.owner_of(cgroup) == owner


def test_inside_a_machine_nothing_belongs_to_that_machine():
    inside = "0::/lxc.payload.web/system.slice/vllm.service"
    assert holders.owner_of(inside, own="0::/lxc.payload.web/user.slice/session-3.scope") == Owner("process")
    assert holders.owner_of(inside, own="0::/user.slice/session-3.scope").kind == "machine"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["vllm", "serve", "--api-key", "abc123", "--port", "80"], "vllm serve --api-key *** --port 80"),
        (["vllm", "--api-key=abc123"], "vllm --api-key=***"),
        (["env", "HF_TOKEN=hf_abcdefghi", "vllm"], "env HF_TOKEN=*** vllm"),
        (["bash", "-c", "OPENAI_API_KEY='s3cr3t' python x.py"], "bash -c OPENAI_API_KEY='***' python x.py"),
        (["x", '{"api_key": "abc"}'], 'x {"api_key": "***"}'),
        (["x", "--header", "Authorization: Bearer abc.def"], "x --header Authorization: Bearer ***"),
        (["x", "http://bob:pw@proxy:3128"], "x http://bob:***@proxy:3128"),
        (["x", "sk-verysecretkey"], "x sk-***"),
        (["x", "--max-num-seq-tokens", "8192", "--tokenizer", "/m"], "x --max-num-seq-tokens 8192 --tokenizer /m"),
        (["x", "--skip-server-warmup", "--api-key", "--port", "80"], "x --skip-server-warmup --api-key --port 80"),
    ],
)  # fmt: skip
def test_secrets_in_a_command_are_masked(argv, line):
    assert holders.shown(argv) == line


def test_a_long_command_is_shortened():
    assert len(holders.shown(["x" * 500])) == 160


@pytest.mark.parametrize(
    ("argv", "interactive"),
    [
        (["-bash"], True), (["/bin/bash", "-l"], True), (["zsh", "-i"], True), (["bash"], True),
        (["bash", "run.sh"], False), (["/bin/sh", "-c", "while :; do x; done"], False),
        (["bash", "-lc", "x"], False), (["python3"], False),
        ([], False),
    ],
)  # fmt: skip
def test_a_shell_at_which_somebody_sits(argv, interactive):
    assert holders.is_interactive(argv) is interactive


class Host:
    """A fake /proc. Inode 42 is the socket that listens on port 8000, as soon as a process has it."""

    def __init__(self, proc: Path, gpus: bool = True) -> None:
        self.proc = proc
        (proc / "net").mkdir()
        if gpus:
            (proc / "driver" / "nvidia" / "gpus" / "0000:00:06.0").mkdir(parents=True)
            (proc / "driver" / "nvidia" / "gpus" / "0000:00:06.0" / "information").write_text(INFORMATION)
        fake_process(proc, 1, parent=0, comm="systemd", cgroup="0::/init.scope")

    def add(self, pid: int, **more) -> None:
        more.setdefault("cgroup", "0::/user.slice/user-0.slice/session-3.scope")
        fake_process(self.proc, pid, **more)
        if "socket:[42]" in more.get("fds", ()):
            self.listen()

    def listen(self) -> None:
        line = "0: 00000000:1F40 00000000:0000 0A 0:0 0:0 0 0 0 42 1 0"
        (self.proc / "net" / "tcp").write_text(f"head\n   {line}\n")

    def find(self, port: int = 8000, gpus=(), service: str = "main"):
        release = {"service": service, "port": port, "gpus": list(gpus)}
        return holders.find([release], processes.Table(self.proc))


ON_PORT = {"fds": ["socket:[42]"]}
ON_GPU = {"fds": ["/dev/nvidia0"], "maps": CUDA.replace("/dev/nvidia11", "/dev/zero")}


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def said(found, takeover=False):
    return [holders.problem(group, takeover, 100) for group in holders.grouped(found)]


def test_a_foreign_unit_is_named_with_all_that_it_holds_and_once(host):
    unit = "0::/system.slice/my-vllm.service"
    host.add(10, cgroup=unit, argv=["vllm", "serve", "--api-key", "x1"], ticks=10, **ON_PORT)
    host.add(11, parent=10, cgroup=unit, argv=["VLLM::Worker_TP0"], ticks=20, **ON_GPU)
    found, doubts = host.find()
    assert doubts == []
    assert said(found) == [
        f"port 8000 and GPU {UUID}: held by unit my-vllm.service (pid 10 and 1 more, user root, for 0s): "
        '"vllm serve --api-key ***". It was left alone: stop it yourself (systemctl disable --now my-vllm.service), '
        "or deploy with -e takeover=true, which stops and disables unit my-vllm.service"
    ]
    assert said(found, takeover=True) == [""]
    result = holders.as_result(found[0], 100)
    assert (result["pid"], result["start_ticks"], result["ports"], result["gpus"]) == (10, 10, [8000], [])
    assert result["owner"] == {"kind": "unit", "name": "my-vllm.service", "text": "unit my-vllm.service"}
    assert result["services"] == ["main"]


def test_the_services_own_processes_are_no_holders(host):
    host.add(10, cgroup="0::/system.slice/ironserve-main.service", **ON_PORT)
    host.add(11, cgroup="0::/system.slice/ironserve-main.service", **ON_GPU)
    assert host.find() == ([], [])


def test_another_service_of_ours_shares_gpus_but_not_the_port(host):
    host.add(11, cgroup="0::/system.slice/ironserve-other.service", **ON_GPU)
    assert host.find() == ([], [])
    host.add(12, cgroup="0::/system.slice/ironserve-other.service", **ON_PORT)
    found, _ = host.find()
    told = said(found, takeover=True)
    assert (
        "it is ironserve-other.service of Ironserve: give one of the two another port, or stop that service" in told[0]
    )


def test_what_an_engine_left_behind_stands_in_nobodys_way_and_a_server_does(host):
    for rank in range(2):
        host.add(20 + rank, comm="sglang::schedul", argv=[f"sglang::scheduler_TP{rank}"], **ON_GPU)
    found, _ = host.find()
    assert said(found) == ["", ""]
    assert holders.as_result(found[0], 100)["leftover"] is True
    host.add(30, argv=["python3", "-m", "sglang.launch_server"], **ON_PORT)
    host.add(31, parent=30, session=30, comm="sglang::schedul", argv=["sglang::scheduler"], **ON_GPU)
    told = [line for line in said(host.find()[0]) if line]
    assert len(told) == 1
    assert "pid 30" in told[0]
    # One that has kept the port is in the way of the new server.
    host.add(40, comm="VLLM::EngineCor", argv=["VLLM::EngineCore"], **ON_PORT)
    assert any("pid 40" in line for line in said(host.find()[0]))


def test_only_gpus_of_the_service_count(host):
    host.add(11, **ON_GPU)
    found, doubts = host.find(gpus=[UUID])
    assert [holder.process.pid for holder in found] == [11]
    found, doubts = host.find(gpus=["GPU-00000000-0000-0000-0000-000000000000"])
    assert found == []
    assert doubts == [
        "GPU GPU-00000000-0000-0000-0000-000000000000: cannot tell who uses it, since /proc/driver/nvidia/gpus does "
        "not list it: compare ironserve_services with nvidia-smi -L on this host"
    ]


def test_a_part_of_a_gpu_is_no_doubt_though_the_driver_does_not_list_it(host):
    assert host.find(gpus=["MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"]) == ([], [])


def test_a_gpu_that_nothing_opened_yet_is_free(host):
    information = host.proc / "driver" / "nvidia" / "gpus" / "0000:00:06.0" / "information"
    information.write_text(INFORMATION.replace(UUID, "GPU-????????-????-????-????-????????????"))
    assert host.find(gpus=[UUID]) == ([], [])


def test_a_listener_that_proc_does_not_show(host):
    host.listen()
    assert host.find() == ([], ["port 8000: taken by a process that /proc of this host does not show: stop it"])


def test_case_14_drivers_and_monitors_are_never_in_the_way_and_never_taken_over(host):
    for pid, comm in enumerate(["nvidia-persistenced", "nv-hostengine", "dcgm-exporter", "nv-fabricmanager", "Xorg",
                                "gnome-shell", "nvidia-smi", "nvidia-cuda-mps-server"], 30):  # fmt: skip
        host.add(pid, comm=comm[:15], cgroup=f"0::/system.slice/{comm}.service", **ON_GPU)
    host.add(50, comm="sglang::schedul", argv=["sglang::scheduler"], **ON_GPU)
    host.add(51, comm="node_exporter", fds=MONITOR_FDS)
    found, _ = host.find()
    assert [holder.process.pid for holder in found] == [50]


def test_a_daemon_of_the_driver_on_the_port_is_refused(host):
    host.add(30, comm="nv-hostengine", cgroup="0::/system.slice/nvidia-dcgm.service", **ON_PORT)
    found, _ = host.find()
    assert "nv-hostengine belongs to the driver or watches it: set ironserve_port" in said(found, takeover=True)[0]


def test_case_11_orphaned_workers_are_found_by_the_gpus_that_they_hold(host):
    # The API server was killed: its children hang below the shell that ran it, nobody listens, no unit is active.
    host.add(9, comm="bash", argv=["-bash"], session=9)
    host.add(12, parent=9, session=9, comm="VLLM::EngineCor", argv=["VLLM::EngineCore"])
    host.add(13, parent=12, session=9, comm="VLLM::Worker_TP", argv=["VLLM::Worker_TP0"], **ON_GPU)
    host.add(14, parent=12, session=9, comm="VLLM::Worker_TP", argv=["VLLM::Worker_TP1"], **ON_GPU)
    found, _ = host.find(port=8001)
    (group,) = holders.grouped(found)
    assert group.first.top.pid == 12
    assert holders.by_takeover(group.first) == "ends pid 12 and its children"


def test_case_21_a_zombie_is_no_holder_but_its_living_child_is(host):
    host.add(31794, state="Z", threads=1, argv=())
    host.add(31801, parent=31794, **ON_GPU)
    found, _ = host.find()
    assert [holder.process.pid for holder in found] == [31801]


def test_case_48_the_connection_to_the_host_is_never_cut(host):
    host.add(60, comm="sshd", argv=["sshd: root"], cgroup="0::/system.slice/remote.service", **ON_PORT)
    host.add(61, parent=60, comm="python3", argv=["python3", "AnsiballZ_host_takeover.py", "vllm serve"])
    found, _ = host.find()
    table = processes.Table(host.proc)
    (held,) = holders.protect(found, table, 61)
    assert "this connection to the host runs through it" in held.refusal


def test_a_unit_that_runs_this_very_deploy_is_not_stopped(host):
    agent = "0::/system.slice/build-agent.service"
    host.add(60, cgroup=agent, **ON_PORT)
    host.add(61, cgroup=agent, argv=["python3", "AnsiballZ_host_takeover.py"])
    found, _ = host.find()
    (held,) = holders.protect(found, processes.Table(host.proc), 61)
    assert "this connection to the host runs through it" in held.refusal


@pytest.mark.parametrize(
    ("chain", "top"),
    [
        # (pid, parent, session, comm, argv) down to 99, which holds the port
        ([(90, 1, 90, "bash", ["bash", "-c", "while :; do x; done"])], 90),
        ([(89, 1, 89, "bash", ["bash", "run.sh"]), (90, 89, 89, "uv", ["uv", "run", "vllm"])], 89),
        ([(90, 1, 90, "bash", ["-bash"])], 99),
        ([(90, 1, 90, "tmux: server", ["tmux"])], 99),
        ([(89, 1, 89, "supervisord", ["python3", "supervisord"])], 99),
    ],
)
def test_what_exists_only_for_a_process_ends_with_it(host, chain, top):
    session = chain[-1][2] if "tmux" not in chain[-1][3] else 99
    for pid, parent, own, comm, argv in chain:
        host.add(pid, parent=parent, session=own, comm=comm, argv=argv)
    host.add(99, parent=chain[-1][0], session=session, **ON_PORT)
    found, _ = host.find()
    assert found[0].top.pid == top


def test_a_script_that_runs_something_else_too_is_left_alone(host):
    host.add(90, session=90, comm="bash", argv=["bash", "run_all.sh"])
    host.add(98, parent=90, session=90, argv=["python3", "other.py"])
    host.add(99, parent=90, session=90, **ON_PORT)
    found, _ = host.find()
    assert found[0].top.pid == 99


def test_a_script_that_only_pipes_into_a_log_ends_with_it(host):
    host.add(90, session=90, comm="bash", argv=["bash", "run.sh"])
    host.add(98, parent=90, session=90, comm="tee", argv=["tee", "log"])
    host.add(99, parent=90, session=90, **ON_PORT)
    found, _ = host.find()
    assert found[0].top.pid == 90


def test_where_a_bare_process_was_started(host):
    host.add(80, comm="tmux: server", argv=["tmux"])
    host.add(90, parent=80, session=90, comm="bash", argv=["bash", "-c", "x"])
    host.add(99, parent=90, session=90, ticks=50, **ON_PORT)
    found, _ = host.find()
    assert said(found) == [
        "port 8000: held by a process under bash (pid 90), started in tmux (server pid 80) (pid 99, user root, "
        'for 0s): "python3". It was left alone: stop it yourself (kill 90), or deploy with -e takeover=true, which '
        "ends pid 90 and its children"
    ]


def test_a_process_with_nohup_says_so(host):
    host.add(99, sigign="0000000000000001", **ON_PORT)
    found, _ = host.find()
    assert "held by a process started with nohup in session-3.scope (pid 99" in said(found)[0]


@pytest.mark.parametrize(
    ("cgroup", "comm", "refusal"),
    [
        (f"0::/kubepods/burstable/pod1/{ID}", "python3", "it belongs to Kubernetes"),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0", "python3", "it belongs to a job of Slurm: scancel 7"),
        ("0::/system.slice/ssh.service", "sshd", "sshd is needed for more than this"),
        ("0::/system.slice/containerd.service", "containerd", "containerd.service is needed for more than this"),
        ("0::/init.scope", "systemd", "init.scope is needed for more than this"),
    ],
)
def test_what_is_never_taken_over(host, cgroup, comm, refusal):
    host.add(99, comm=comm, cgroup=cgroup, **ON_PORT)
    found, _ = host.find()
    told = said(found, takeover=True)
    assert refusal in told[0]
    assert "takeover=true" not in told[0]
