"""Settings from the environment, and the bounds of the configuration."""

from __future__ import annotations

import msgspec
import pytest

from ps.config import KIB, MAX_PARTITION_BYTES, MIB, CommConfig, Role, Settings
from ps.errors import SettingsError

PLAIN = {
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9091",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "3",
}


def test_what_mxnet_users_set_is_enough() -> None:
    settings = Settings.from_env(Role.WORKER, PLAIN)
    assert (settings.root_host, settings.root_port) == ("10.0.0.1", 9091)
    assert (settings.num_workers, settings.num_servers) == (2, 3)
    assert settings.config == CommConfig(partition_bytes=512 * KIB, credit_bytes=4 * MIB, fusion_bytes=None, epoch=0)
    assert settings.preferred_rank == -1


@pytest.mark.parametrize("name", sorted(PLAIN))
@pytest.mark.parametrize("empty", [True, False])
def test_a_missing_variable_is_named(name: str, empty: bool) -> None:
    variables = {**PLAIN, name: " "} if empty else {key: value for key, value in PLAIN.items() if key != name}
    with pytest.raises(SettingsError, match=f"^{name} is not set: expected "):
        Settings.from_env(Role.WORKER, variables)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("DMLC_PS_ROOT_PORT", "70000", "DMLC_PS_ROOT_PORT='70000': expected the scheduler's port, 1 to 65535"),
        ("DMLC_NUM_WORKER", "two", "DMLC_NUM_WORKER='two': expected the number of workers, 1 to 65536"),
        ("DMLC_NUM_SERVER", "0", "DMLC_NUM_SERVER='0': expected the number of servers, 1 to 65536"),
        ("DMLC_ROLE", "server", "DMLC_ROLE='server': this process is a worker"),
        ("DMLC_WORKER_ID", "-1", "DMLC_WORKER_ID='-1': expected a rank, 0 to 65535"),
        ("AUTOBYTE_PARTITION_BYTES", "1e6", "AUTOBYTE_PARTITION_BYTES='1e6': expected bytes, a whole number"),
        (
            "AUTOBYTE_CREDIT_BYTES",
            "0",
            "AUTOBYTE_CREDIT_BYTES must be an integer from 1 to 68719476736, not 0",
        ),
        ("AUTOBYTE_DEADLINE_SECONDS", "inf", "AUTOBYTE_DEADLINE_SECONDS='inf': expected seconds, 0.1 to 1e+08"),
        ("AUTOBYTE_DEADLINE_SECONDS", "1e-9", "AUTOBYTE_DEADLINE_SECONDS='1e-9': expected seconds, 0.1 to 1e+08"),
        ("AUTOBYTE_START_SECONDS", "-3", "AUTOBYTE_START_SECONDS='-3': expected seconds, 0.1 to 1e+08"),
        ("AUTOBYTE_HEARTBEAT_SECONDS", "nan", "AUTOBYTE_HEARTBEAT_SECONDS='nan': expected seconds, 0.01 to 1e+08"),
        ("AUTOBYTE_SILENCE_SECONDS", "0.5", "AUTOBYTE_SILENCE_SECONDS='0.5': expected seconds, 1 to 1e+08"),
        (
            "AUTOBYTE_SILENCE_SECONDS",
            "1.5",
            "AUTOBYTE_SILENCE_SECONDS=1.5: expected at least twice AUTOBYTE_HEARTBEAT_SECONDS=1",
        ),
        (
            "AUTOBYTE_HEARTBEAT_SECONDS",
            "15",
            "AUTOBYTE_SILENCE_SECONDS=20: expected at least twice AUTOBYTE_HEARTBEAT_SECONDS=15",
        ),
        ("AUTOBYTE_WINDOW_SECONDS", "0", "AUTOBYTE_WINDOW_SECONDS='0': expected seconds, 0.01 to 1e+08"),
        (
            "AUTOBYTE_SWITCH_INTERVAL_SECONDS",
            "1e-9",
            "AUTOBYTE_SWITCH_INTERVAL_SECONDS='1e-9': expected seconds, 1e-06 to 1e+08",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(name: str, value: str, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(Role.WORKER, {**PLAIN, name: value})
    assert str(caught.value) == text


def test_a_node_asks_for_the_rank_of_its_own_role() -> None:
    variables = {**PLAIN, "DMLC_WORKER_ID": "1", "DMLC_SERVER_ID": "2"}
    ranks = [Settings.from_env(role, variables).preferred_rank for role in (Role.WORKER, Role.SERVER, Role.SCHEDULER)]
    assert ranks == [1, 2, -1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition_bytes", 0),
        ("partition_bytes", -1),
        ("partition_bytes", float("nan")),
        ("partition_bytes", 1.5),
        ("partition_bytes", True),
        ("partition_bytes", 10**12),
        ("credit_bytes", 0),
        ("credit_bytes", 10**12),
        ("fusion_bytes", -1),
        ("epoch", -1),
    ],
)
def test_a_configuration_out_of_range_cannot_be_made_or_decoded(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be an integer from "):
        CommConfig(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.msgpack.decode(msgspec.msgpack.encode({name: value}), type=CommConfig)


def test_fusion_follows_the_partition_unless_it_is_set() -> None:
    assert CommConfig(partition_bytes=MIB).fused_bytes == 512 * KIB
    assert CommConfig(partition_bytes=MAX_PARTITION_BYTES).fused_bytes == 4 * MIB
    assert CommConfig(partition_bytes=1).fused_bytes == 0
    assert CommConfig(partition_bytes=MIB, fusion_bytes=1000).fused_bytes == 1000
    assert Settings.from_env(Role.WORKER, {**PLAIN, "AUTOBYTE_FUSION_BYTES": "0"}).config.fused_bytes == 0


def test_a_partition_of_one_byte_and_no_fusion_are_allowed() -> None:
    assert CommConfig(partition_bytes=1, fusion_bytes=0).partition_bytes == 1


def test_a_misspelt_variable_is_warned_of_with_the_nearest_names(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    more = {"AUTOBYTE_DEADLINE": "5", "AUTOBYTE_MY_OWN_THING": "1", "AUTOBYTE_TUNER": "rule"}
    for name, value in {**PLAIN, **more}.items():
        monkeypatch.setenv(name, value)
    Settings.from_env(Role.SCHEDULER)
    assert caplog.messages == [
        "AUTOBYTE_DEADLINE is no setting and has no effect: did you mean AUTOBYTE_DEADLINE_SECONDS?",
        "AUTOBYTE_MY_OWN_THING is no setting and has no effect: docs/settings.md has those that there are",
    ]
