"""A real PostgreSQL, in well under a second: Debian's package, without flushing to the disk."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from urllib.parse import quote

from .local_server import LocalServer, not_installed

USER, PASSWORD, DATABASE = "tester", "s3:cr@t/%", "corpus"


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    program = str(found[-1]) if found else shutil.which("initdb")
    if program is None:
        not_installed("PostgreSQL is not installed: apt-get install -y postgresql")
    return Path(str(program)).parent


class PostgreSQL(LocalServer):
    """A server with a superuser whose password has characters that URIs must escape, and one empty database."""

    quick_stop = signal.SIGINT      # "fast": sessions are ended
    crash = signal.SIGQUIT          # "immediate": like a crash, but no session survives and delays the next start

    def __init__(self) -> None:
        self._programs = _programs()
        super().__init__("postgresql", "postgres")
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._data = self.folder / "data"
        self._run([str(self._programs / "initdb"), "-D", str(self._data), "-A", "scram-sha-256", "-U", USER,
                   f"--pwfile={password}", "-N", "-E", "UTF8", "--locale=C.UTF-8"])
        self.start()
        self.execute(f"CREATE DATABASE {DATABASE}", database="postgres")

    def command(self) -> list[str]:
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(self.folder), "fsync": "off",
                   "full_page_writes": "off", "shared_buffers": "64MB",
                   "max_connections": "40"}
        return [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port),
                *(f"--{name}={value}" for name, value in options.items())]

    def is_ready(self) -> bool:
        import psycopg

        try:
            self.execute("SELECT 1", database="postgres")
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, *statements: str, database: str = DATABASE) -> list[tuple[object, ...]]:
        """Run statements one by one, and return the rows of the last one."""
        import psycopg

        rows: list[tuple[object, ...]] = []
        with psycopg.connect(host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database,
                             autocommit=True, connect_timeout=10) as connection:
            for statement in statements:
                result = connection.execute(statement.encode())
                rows = result.fetchall() if result.description else []
        return rows

    def uri(self, options: str, port: int | None = None, user: str = USER, password: str = PASSWORD,
            database: str = DATABASE) -> str:
        return (f"postgresql+psycopg://{user}:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{database}"
                f"?{options}")
