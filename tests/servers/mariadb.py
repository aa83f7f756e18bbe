"""A real MariaDB, in about two seconds: Debian's package, without flushing to the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

from .local_server import LocalServer, not_installed

USER, PASSWORD, DATABASE = "tester", "s3:cr@t/%", "corpus"
_SHARED = Path("/usr/share/mysql")


class MariaDB(LocalServer):
    """A server with one user, whose password has characters that URIs must escape, and one empty database."""

    def __init__(self) -> None:
        program = shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
        if program is None:
            not_installed("MariaDB is not installed: apt-get install -y mariadb-server")
        super().__init__("mariadb", "mysql")
        self._program, self._data = str(program), self.folder / "data"
        self._run(["mkdir", str(self._data)])
        tables = [(_SHARED / name).read_text(encoding="utf-8")
                  for name in ("mysql_system_tables.sql", "mysql_system_tables_data.sql")]
        user = f"{USER}@'127.0.0.1'"
        statements = ["CREATE DATABASE mysql;", "USE mysql;", *tables, "FLUSH PRIVILEGES;",
                      f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4;",
                      f"CREATE USER {user} IDENTIFIED BY '{PASSWORD}';", f"GRANT ALL ON *.* TO {user};"]
        self._run([*self._options(), "--bootstrap"], "\n".join([*statements, ""]).encode())
        self.start()

    def _options(self) -> list[str]:
        return [self._program, "--no-defaults", f"--datadir={self._data}", "--innodb-flush-log-at-trx-commit=2",
                "--innodb-flush-method=nosync", "--innodb-log-file-size=16M", "--innodb-buffer-pool-size=64M",
                "--innodb-use-native-aio=0", "--skip-name-resolve", "--skip-log-bin"]

    def command(self) -> list[str]:
        return [*self._options(), f"--port={self.port}", "--bind-address=127.0.0.1",
                f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}"]

    def is_ready(self) -> bool:
        import pymysql

        try:
            self.execute("SELECT 1")
        except pymysql.OperationalError:
            return False
        return True

    def execute(self, *statements: str) -> list[tuple[object, ...]]:
        """Run statements one by one, and return the rows of the last one."""
        import pymysql

        connection = pymysql.connect(host="127.0.0.1", port=self.port, user=USER, password=PASSWORD,
                                     database=DATABASE, autocommit=True, connect_timeout=10)
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def uri(self, options: str, port: int | None = None, user: str = USER, password: str = PASSWORD,
            database: str = DATABASE) -> str:
        return (f"mysql+pymysql://{user}:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{database}"
                f"?{options}")
