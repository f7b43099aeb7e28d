"""An object store with S3's interface on the loopback (moto), and what Spark needs to reach it through s3a.

Spark's s3a connector is a jar of Hadoop, of the version of Spark's own Hadoop, with the parts of the AWS SDK
that it loads. Ivy, which comes with Spark, fetches them once to ``.cache``, 19 MB. A machine without a
network skips the test and says so; with ``CI=true`` it fails.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pyarrow.fs
import pytest

from support.spark_fixtures import spark_home

# The SDK that a version of the connector was built with.
_SDKS = {"3.5.0": "2.35.4"}
_CACHE = Path(__file__).parents[2] / ".cache"
_LIMIT_S = 900.0
_REGION, _USER, _PASSWORD = "us-east-1", "user", "password"
_BUCKET = "bstar"
_IVY = """<ivy-module version="2.0"><info organisation="bstar" module="s3a"/>
<configurations><conf name="default"/></configurations><dependencies>
<dependency org="org.apache.hadoop" name="hadoop-aws" rev="{hadoop}" conf="default->default"/>
<dependency org="software.amazon.awssdk" name="s3" rev="{sdk}" conf="default->default"/>
<dependency org="software.amazon.awssdk" name="s3-transfer-manager" rev="{sdk}" conf="default->default"/>
<dependency org="software.amazon.awssdk" name="sts" rev="{sdk}" conf="default->default"/>
<exclude org="software.amazon.awssdk" module="bundle"/></dependencies></ivy-module>"""


def _jars(name: str) -> list[Path]:
    """Spark's own of that name."""
    return list((spark_home() / "jars").glob(f"{name}-[0-9]*.jar"))


def s3a_jars() -> list[Path]:
    """The connector's jars, fetched if they are not in the cache. Skips the test if they cannot be had."""
    (client,) = _jars("hadoop-client-api")
    hadoop = client.stem.rpartition("-")[2]
    folder = _CACHE / f"s3a-{hadoop}"
    if not folder.is_dir():
        assert hadoop in _SDKS, f"which AWS SDK does hadoop-aws {hadoop} need? Its POM says: add it to _SDKS"
        _fetch(hadoop, folder)
    return sorted(folder.glob("*.jar"))


def _fetch(hadoop: str, folder: Path) -> None:
    from bstar_pipeline.session import find_java

    _CACHE.mkdir(exist_ok=True)
    work = Path(mkdtemp(prefix="s3a-", dir=_CACHE))
    try:
        (work / "ivy.xml").write_text(_IVY.format(hadoop=hadoop, sdk=_SDKS[hadoop]))
        path = ":".join(str(jar) for name in ("ivy", "commons-cli") for jar in _jars(name))
        done = subprocess.run(
            [
                *(find_java(), "-cp", path, "org.apache.ivy.Main", "-ivy", str(work / "ivy.xml")),
                *("-cache", str(work / "cache"), "-confs", "default"),
                *("-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"),
            ],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            reason = f"no jar of hadoop-aws {hadoop}, and it could not be fetched:\n{done.stdout[-2_000:]}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        (work / "jars").rename(folder)
    finally:
        rmtree(work, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running one. ``settings`` are Spark's for s3a."""

    settings: dict[str, str]
    files: pyarrow.fs.FileSystem

    def uri(self, path: str) -> str:
        """As Spark names what is at ``path``."""
        return f"s3a://{_BUCKET}/{path}"

    def put(self, folder: Path, path: str) -> None:
        """Copy a folder of this machine to the store."""
        here = pyarrow.fs.LocalFileSystem()
        pyarrow.fs.copy_files(str(folder), f"{_BUCKET}/{path}", here, self.files)

    def get(self, path: str, folder: Path) -> None:
        """Copy what is below a path to a folder of this machine."""
        here = pyarrow.fs.LocalFileSystem()
        pyarrow.fs.copy_files(f"{_BUCKET}/{path}", str(folder), self.files, here)

    def paths(self, path: str) -> list[str]:
        """All that is below a path."""
        selector = pyarrow.fs.FileSelector(f"{_BUCKET}/{path}", allow_not_found=True, recursive=True)
        return [info.path.removeprefix(f"{_BUCKET}/") for info in self.files.get_file_info(selector)]


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A store with one bucket, in this process's memory."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        files = pyarrow.fs.S3FileSystem(
            access_key=_USER,
            secret_key=_PASSWORD,
            region=_REGION,
            endpoint_override=endpoint,
            allow_bucket_creation=True,
        )
        files.create_dir(_BUCKET)
        s3a = {
            "endpoint": endpoint,
            "endpoint.region": _REGION,
            "access.key": _USER,
            "secret.key": _PASSWORD,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
        }
        yield ObjectStore({f"spark.hadoop.fs.s3a.{key}": value for key, value in s3a.items()}, files)
    finally:
        server.stop()
