"""What the module returns and how it fails; how it looks is tested in test_nvml.py."""

from __future__ import annotations

import gpu_info
import pytest
import yaml
from ansible.module_utils.ironserve.gpus import Gpu, GpuProcess, Reading


class EndedError(Exception):
    """Carries a module's result out of its main()."""


def result_of(reading: Reading, monkeypatch) -> dict:
    class FakeModule:
        def __init__(self, **_):
            self.params = {"timeout_s": 5.0}

        def exit_json(self, **result):
            raise EndedError({"failed": False, **result})

        def fail_json(self, msg, **result):
            raise EndedError({"failed": True, "msg": msg, **result})

    monkeypatch.setattr(gpu_info, "AnsibleModule", FakeModule)
    monkeypatch.setattr(gpu_info, "look", lambda timeout_s, topology: reading)
    with pytest.raises(EndedError) as ended:
        gpu_info.main()
    return ended.value.args[0]


def test_a_result_has_the_keys_that_its_page_lists(monkeypatch):
    good = Gpu(0, "GPU-0", compute_capability="12.0", processes=(GpuProcess(7, "C", None),))
    lost = Gpu(-1, "GPU-1", processes=None, error="lost")
    result = result_of(Reading("nvml", (good, lost), "580.159.04", "13.0", problems=("slow",)), monkeypatch)
    page = yaml.safe_load(gpu_info.RETURN)
    assert set(result) - {"failed", "changed"} == {key for key, said in page.items() if said["returned"] != "failure"}
    documented = page["gpus"]["contains"]
    assert [set(gpu) for gpu in result["gpus"]] == [set(documented)] * 2
    assert set(result["gpus"][0]["processes"][0]) == set(documented["processes"]["contains"])
    assert (result["failed"], result["changed"]) == (False, False)
    assert result["problems"][0] == "slow"
    assert "GPU-1" in result["problems"][1]


def test_case_18_a_hung_driver_fails_the_module_with_what_to_do(monkeypatch):
    result = result_of(Reading("", failure="hung"), monkeypatch)
    assert (result["failed"], result["failure"]) == (True, "hung")
    assert "did not answer within 5 s" in result["msg"]
