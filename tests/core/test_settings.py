"""Settings from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamkeeper import settings as module
from streamkeeper.errors import SettingsError
from streamkeeper.settings import ENVIRONMENTS, PROJECT, Settings, file_system, of_environment


def test_an_empty_environment_gives_the_demos_folders() -> None:
    settings = Settings.from_environment({})
    assert settings.pipelines == PROJECT / "spark_jobs" / "pipelines"
    assert settings.jars == PROJECT / ".cache" / "jars"
    assert {settings.state, settings.warehouse, settings.data} == {
        str(PROJECT / ".demo" / name) for name in ("state", "warehouse", "data")
    }


def test_an_empty_value_counts_as_unset() -> None:
    unset = dict.fromkeys(("STREAMKEEPER_STATE", "STREAMKEEPER_JARS", "STREAMKEEPER_LEASE_TERM"), "")
    assert Settings.from_environment(unset) == Settings.from_environment({})


def test_settings_survive_the_way_through_another_process_environment() -> None:
    first = Settings.from_environment(
        {
            "STREAMKEEPER_STATE": "s3://bucket/state",
            "STREAMKEEPER_DATA": "/some/data",
            "STREAMKEEPER_LEASE_TERM": "24.5",
            "STREAMKEEPER_READ_AT_MOST": "3",
            "STREAMKEEPER_ENV": "stage",
            "STREAMKEEPER_SPARK_UI": "true",
            "STREAMKEEPER_EVENT_LOG": "s3://bucket/events",
            "STREAMKEEPER_HISTORY_SERVER": "http://history:18080/",
        }
    )
    assert (first.spark_ui, first.history_server) == (True, "http://history:18080")
    assert (first.read_at_most, first.environment) == (3, "stage")
    assert Settings.from_environment(first.as_environment()) == first


def test_a_home_folder_is_filled_in_and_urls_stay() -> None:
    settings = Settings.from_environment(
        {"STREAMKEEPER_STATE": "~/state", "STREAMKEEPER_WAREHOUSE": "s3://bucket/w"}
    )
    assert (settings.state, settings.warehouse) == (str((Path.home() / "state").resolve()), "s3://bucket/w")


@pytest.mark.parametrize(
    ("warehouse", "table", "path"),
    [("/w", "t", "/w/t"), ("/w", "s.t", "/w/s/t"), ("s3://bucket/w/", "s.t", "s3://bucket/w/s/t")],
    ids=["table", "schema and table", "url with a slash"],
)
def test_a_table_lives_below_the_warehouse(warehouse: str, table: str, path: str) -> None:
    assert Settings.from_environment({"STREAMKEEPER_WAREHOUSE": warehouse}).table_path(table) == path


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "STREAMKEEPER_PIPELINES",
            "s3://bucket/pipelines",
            "STREAMKEEPER_PIPELINES is 's3://bucket/pipelines', a URL; it must be a local folder",
        ),
        ("STREAMKEEPER_JARS", "https://host/jars", "STREAMKEEPER_JARS .* must be a local folder"),
        ("STREAMKEEPER_STATE", "state", "STREAMKEEPER_STATE is 'state', a relative path"),
        ("STREAMKEEPER_PIPELINES", "./pipelines", "a relative path, .* Start it with / or ~"),
        ("STREAMKEEPER_PIPELINES", "~no", "is '~no', which can be no path here: Could not determine home"),
        ("STREAMKEEPER_JARS", f"/{'x' * 300}", "which can be no path here: File name too long"),
        (
            "STREAMKEEPER_LEASE_TERM",
            "soon",
            "STREAMKEEPER_LEASE_TERM is 'soon'; it must be a number of seconds above 0",
        ),
        ("STREAMKEEPER_LEASE_TERM", "0", "above 0"),
        ("STREAMKEEPER_HEARTBEAT_INTERVAL", "-1", "STREAMKEEPER_HEARTBEAT_INTERVAL is '-1'"),
        ("STREAMKEEPER_HEARTBEAT_INTERVAL", "inf", "above 0"),
        ("STREAMKEEPER_HEARTBEAT_INTERVAL", "nan", "above 0"),
        ("STREAMKEEPER_HEARTBEAT_INTERVAL", "1e-300", "above 0"),
        ("STREAMKEEPER_LEASE_TERM", "６０", "above 0"),
        ("STREAMKEEPER_LEASE_TERM", "1_0", "above 0"),
        ("STREAMKEEPER_READ_AT_MOST", "1e300", "above 0"),
        ("STREAMKEEPER_APPROVERS", "ada,grace hopper", "Allowed are names of users"),
        ("STREAMKEEPER_APPROVERS", " , ", "Allowed are names of users"),
        ("STREAMKEEPER_APPROVER_DIFFERS", "yes", "must be true or false"),
        ("STREAMKEEPER_HISTORY_SERVER", "http://ada:hunter2@history", "without a login"),
        ("STREAMKEEPER_SPARK_UI", "maybe", "is 'maybe'; it must be true or false"),
        ("STREAMKEEPER_DAG_PREFIX", "a b", "is 'a b'; ids of DAGs begin with it: at most 50 letters, digits"),
        ("STREAMKEEPER_HISTORY_SERVER", "history:18080", "must be an address such as http"),
        (
            "STREAMKEEPER_LEASE_TERM",
            "2",
            "STREAMKEEPER_LEASE_TERM is 2 .* at least twice STREAMKEEPER_HEARTBEAT_INTERVAL",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.from_environment({name: value})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"STATE": "/w", "WAREHOUSE": "/w"}, "STATE is /w and STREAMKEEPER_WAREHOUSE /w: they are the same"),
        ({"STATE": "/w/state/", "WAREHOUSE": "/w"}, "the first is inside the second"),
        ({"STATE": "s3://b/a", "WAREHOUSE": "s3a://b//a/w"}, "the second is inside the first"),
        ({"PIPELINES": "/w", "STATE": "/w/"}, "PIPELINES is /w and STREAMKEEPER_STATE /w: they are the same"),
        ({"JARS": "/w/jars", "WAREHOUSE": "/w"}, "JARS is /w/jars and STREAMKEEPER_WAREHOUSE /w: the first"),
        ({"STATE": "file:///w", "DATA": "/w/data"}, "the second is inside the first"),
        ({"STATE": "s3://b/x", "BACKUPS": "s3://b/x"}, "STREAMKEEPER_BACKUPS s3://b/x: they are the same"),
        ({"WAREHOUSE": "/w", "BACKUPS": "/w/customers"}, "name that begins with an underscore"),
        ({"WAREHOUSE": "/b/w", "BACKUPS": "/b"}, "the first is inside the second"),
        ({"STATE": "file://srv/state"}, "a relative path, .* three slashes"),
        ({"STATE": "gs://b/state"}, "not on gs://. To try it, set STREAMKEEPER_UNTESTED_STORAGE=true"),
        ({"STATE": "github://a:b@main/s"}, "STATE: .* nor the URL of a store. Allowed are absolute paths"),
        ({"WAREHOUSE": "zip://w::file:///etc", "UNTESTED_STORAGE": "true"}, "nor the URL of a store"),
        ({"BACKUPS": "s3://"}, "names no bucket"),
        ({"ALLOWED_ROOTS": "/srv, http://host/x"}, "ALLOWED_ROOTS: 'http://host/x' is neither"),
        ({"STATE": "memory://s", "UNTESTED_STORAGE": "true"}, "gone with each process"),
        ({"UNTESTED_STORAGE": "yes"}, "must be true or false"),
    ],
)
def test_folders_that_would_destroy_each_other_are_refused(value: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.from_environment({f"STREAMKEEPER_{name}": place for name, place in value.items()})


@pytest.mark.parametrize(
    "value",
    [
        {"STATE": "/w/state", "WAREHOUSE": "/w/states", "DATA": "/w/data", "BACKUPS": "/w/backups"},
        {"WAREHOUSE": "s3://b/w", "BACKUPS": "s3://b/w/__backups"},
        {"STATE": "s3://b", "WAREHOUSE": "/b"},
        {"STATE": "gs://b/state", "UNTESTED_STORAGE": "true"},
    ],
)
def test_folders_beside_each_other_are_taken(value: dict[str, str]) -> None:
    settings = Settings.from_environment({f"STREAMKEEPER_{name}": place for name, place in value.items()})
    assert Settings.from_environment(settings.as_environment()) == settings


ROOTS = {"ALLOWED_ROOTS": "/old,s3://b/old", "WAREHOUSE": "/w", "DATA": "s3://b/data", "STATE": "/s"}


@pytest.mark.parametrize(
    ("roots", "place", "said"),
    [
        ({}, "/anything", None),
        ({}, "s3://any/thing", None),
        ({}, "/proc/self", "a view of processes"),
        ({}, "/pr?c/self", "a view of processes"),
        ({}, "file:///x/../%70roc/self", "a view of processes"),
        ({}, "https://host/x", "nor the URL of a store"),
        (ROOTS, "/old/2025", None),
        (ROOTS, "file:///old/2025-*", None),
        (ROOTS, "/w/__backups/x", None),
        (ROOTS, "s3a://b/old/x", None),
        (ROOTS, "s3://b/data", None),
        (
            ROOTS,
            "/older",
            "/older lies in none of the folders that may be used: /old, s3://b/old, /w, s3://b/data",
        ),
        (ROOTS, "/old/../etc", "in none of the folders"),
        (ROOTS, "/old/{a/b,../../etc}", "in none of the folders"),
        (ROOTS, "s3://b/old/../secret", "in none of the folders"),
        (ROOTS, "s3://other/old", "add its folder to STREAMKEEPER_ALLOWED_ROOTS"),
    ],
)
def test_where_may_be_read_and_written_is_a_setting(
    roots: dict[str, str], place: str, said: str | None
) -> None:
    settings = Settings.from_environment({f"STREAMKEEPER_{name}": root for name, root in roots.items()})
    refused = settings.why_outside(place)
    assert refused is None if said is None else said in str(refused)


def test_a_link_out_of_the_allowed_folders_is_followed(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "link").symlink_to("/etc")
    settings = Settings.from_environment({"STREAMKEEPER_ALLOWED_ROOTS": str(tmp_path / "old")})
    assert settings.why_outside(str(tmp_path / "old" / "x")) is None
    assert "in none of the folders" in str(settings.why_outside(str(tmp_path / "old" / "link")))


MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
41 27 0:45 / /srv/nfs rw,relatime shared:7 master:1 - nfs4 filer:/export rw,vers=4.2,hard,proto=tcp
42 27 0:46 / /srv/nfs/local\040disk rw,relatime shared:8 - xfs /dev/vdb rw
43 27 0:47 / /srv/over rw,relatime - xfs /dev/vdc rw
44 43 0:48 / /srv/over rw,relatime - cifs //filer/share rw,vers=3.1.1
45 27 0:49 / /srv/buckets rw,nosuid,nodev - fuse.s3fs s3fs rw,user_id=0
46 27 0:50 / /srv/merged rw,relatime - fuse.mergerfs 1:2 rw
47 27 0:51 / /srv/other\134040 rw,relatime - lustre mgs@tcp:/fs rw
""".lstrip()
"""A recorded table, without what other lines of it tell again."""


@pytest.fixture
def recorded_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    monkeypatch.setattr(module, "MOUNTS", table)
    return table


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/srv/state", "ext4"),
        ("/srv/nfs", "nfs4"),
        ("/srv/nfs/state/deep", "nfs4"),
        ("/srv/nfsx/state", "ext4"),
        ("/srv/nfs/local disk/state", "xfs"),
        ("/srv/over/state", "cifs"),
        ("/srv/buckets/state", "fuse.s3fs"),
        ("/srv/other\\040/state", "lustre"),
        ("/proc/1", "proc"),
    ],
)
def test_a_path_is_of_the_file_system_of_its_nearest_mount(
    recorded_mounts: Path, path: str, kind: str
) -> None:
    assert file_system(path) == kind


@pytest.mark.parametrize("setting", ["STATE", "WAREHOUSE", "BACKUPS"])
@pytest.mark.parametrize(
    ("place", "kind"),
    [("/srv/nfs/x", "nfs4"), ("file:///srv/over/x", "cifs"), ("/srv/buckets/x", "fuse.s3fs")],
)
def test_a_network_file_system_is_refused_unless_a_setting_says_untested(
    recorded_mounts: Path, setting: str, place: str, kind: str
) -> None:
    value = {f"STREAMKEEPER_{setting}": place}
    with pytest.raises(
        SettingsError, match=rf"STREAMKEEPER_{setting} is /srv/.*not on {kind} over a network. To try it, set"
    ):
        Settings.from_environment(value)
    settings = Settings.from_environment({**value, "STREAMKEEPER_UNTESTED_STORAGE": "true"})
    assert Settings.from_environment(settings.as_environment()) == settings


@pytest.mark.parametrize(
    "value",
    [{"STATE": "/srv/nfs/local disk/state"}, {"WAREHOUSE": "/srv/merged/w"}, {"DATA": "/srv/nfs/landing"}],
    ids=["a disk below", "disks of this host", "what sources read"],
)
def test_other_mounts_are_taken(recorded_mounts: Path, value: dict[str, str]) -> None:
    Settings.from_environment({f"STREAMKEEPER_{name}": place for name, place in value.items()})


def test_nothing_is_known_where_there_is_no_table_of_mounts(recorded_mounts: Path) -> None:
    recorded_mounts.unlink()
    assert file_system("/srv/nfs/state") == ""
    Settings.from_environment({"STREAMKEEPER_STATE": "/srv/nfs/state"})


def test_a_link_to_a_network_file_system_is_refused(recorded_mounts: Path, tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to("/srv/nfs/state")
    with pytest.raises(SettingsError, match="not on nfs4"):
        Settings.from_environment({"STREAMKEEPER_STATE": str(tmp_path / "state")})


def test_an_environment_is_a_file_of_settings(tmp_path: Path) -> None:
    (tmp_path / "stage.env").write_text(
        "# of the stage\n\nSTREAMKEEPER_STATE=/srv/stage/state\nexport STREAMKEEPER_WAREHOUSE='/srv/w'\n"
    )
    (tmp_path / "wrong.env").write_text("PATH=/somewhere\n")
    folder = {ENVIRONMENTS: str(tmp_path)}
    assert of_environment("stage", folder) == {
        "STREAMKEEPER_STATE": "/srv/stage/state",
        "STREAMKEEPER_WAREHOUSE": "/srv/w",
        "STREAMKEEPER_ENV": "stage",
    }
    with pytest.raises(SettingsError, match=r"no environment 'prod' in .*There are: stage, wrong. Write"):
        of_environment("prod", folder)
    with pytest.raises(SettingsError, match=r"no environment '../stage'"):
        of_environment("../stage", folder)
    with pytest.raises(SettingsError, match=r"wrong.env:1: 'PATH' is no setting. A line is NAME=value"):
        of_environment("wrong", folder)
    (tmp_path / "wrong.env").write_bytes(b"STREAMKEEPER_STATE=/srv\0\n")
    with pytest.raises(SettingsError, match=r"wrong.env:1: 'STREAMKEEPER_STATE' is no setting"):
        of_environment("wrong", folder)
    (tmp_path / "wrong.env").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"wrong.env cannot be read: .* lines of NAME=value in UTF-8"):
        of_environment("wrong", folder)


def test_a_table_of_another_place_stays_there_through_another_process(tmp_path: Path) -> None:
    env = {
        "STREAMKEEPER_WAREHOUSE": str(tmp_path / "w"),
        "STREAMKEEPER_TABLE_PATHS": f"orders={tmp_path}/lake/orders/, s.t={tmp_path}/lake/t",
    }
    settings = Settings.from_environment(env)
    places = [settings.table_path(name) for name in ("orders", "s.t", "other")]
    assert places == [f"{tmp_path}/lake/orders", f"{tmp_path}/lake/t", f"{tmp_path}/w/other"]
    assert Settings.from_environment(settings.as_environment()) == settings


@pytest.mark.parametrize(
    ("places", "refusal"),
    [
        ("orders", "has 'orders'. Allowed is TABLE=PLACE"),
        ("orders=/a,orders=/b", "has 'orders=/b'. Allowed is TABLE=PLACE, once a table"),
        ("a=/lake/a,b=/lake/a/b", "the second is inside the first"),
        ("orders=/w/orders", "the second is inside the first"),
        ("orders=lake/orders", "a relative path"),
        ("orders=s3://lake/orders", "Both must be on S3, or both in folders"),
        ("../x=/lake/x", "Allowed is TABLE=PLACE"),
    ],
)
def test_a_place_of_a_table_that_cannot_be_is_refused(places: str, refusal: str) -> None:
    env = {"STREAMKEEPER_WAREHOUSE": "/w", "STREAMKEEPER_TABLE_PATHS": places}
    with pytest.raises(SettingsError) as refused:
        Settings.from_environment(env)
    assert refusal in str(refused.value) and "STREAMKEEPER_TABLE_PATHS" in str(refused.value)
