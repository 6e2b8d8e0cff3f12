"""A real Kafka broker for tests and the demo: one node, KRaft, on free ports, in a folder and a process group
of its own.

    with KafkaBroker(folder) as broker:
        broker.bootstrap_servers      # "127.0.0.1:PORT"

    python -m tools.kafka_broker FOLDER HOST PORT     runs one for other hosts, which know this one as HOST

Its jars come once into .cache/kafka-4.1.0, exactly as tools/kafka_broker.lock names them.
"""

import base64
import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streamkeeper.jars.folder import ensure
from streamkeeper.jars.java import find_java
from streamkeeper.settings import PROJECT
from tools.ports import free_ports
from tools.waiting import NeverCame, NotYet, told_to_stop, wait_until

LOCK = Path(__file__).with_suffix(".lock")
JARS = PROJECT / ".cache" / "kafka-4.1.0"
START_SECONDS = 120.0
_JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaBrokerError(Exception):
    """The broker did not format its folder, start or stop; the message holds the end of its log."""


class KafkaBroker:
    """A broker that runs inside a `with` block; `start` and `stop` may also be called by themselves, and
    again: the data stays.

    `settings` are added to server.properties; the port is a free one unless given. Topics must be created;
    set `auto.create.topics.enable` to change that.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.log = self.folder / "broker.log"
        self._settings = settings or {}
        self._environment = {**os.environ, **(environment or {})}
        free, self._controller_port = free_ports(2)
        self._port = port or free
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of its process, of its group and of its session."""
        assert self._process is not None, "it was not started"
        return self._process.pid

    @property
    def end_of_log(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def __enter__(self) -> "KafkaBroker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Install the jars if they are not there, format the folder if it is new, start, and wait until
        metadata is answered.
        """
        if self._process is not None:
            raise KafkaBrokerError(
                f"The broker at {self.bootstrap_servers} is already started; call stop() first."
            )
        ensure(JARS, LOCK)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._format()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_it_answers(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self, timeout: float = 30.0) -> None:
        """End the broker's process group: SIGTERM, and SIGKILL after `timeout` seconds. Does nothing if it is
        not started.
        """
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End the broker's process group by SIGKILL, as a crash would. Does nothing if it is not started."""
        if self._process is None:
            return
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [str(find_java()), *_JAVA_OPTIONS, "-cp", f"{JARS}/*", main, *arguments]

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _format(self) -> None:
        self._write_properties()
        if (self.folder / "data" / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = ("format", "--cluster-id", f"a{cluster[1:]}", "--config", str(self._properties))
        command = self._java("kafka.tools.StorageTool", *arguments)
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        if answer.returncode != 0:
            raise KafkaBrokerError(
                f"Kafka could not format {self.folder} (exit code"
                f" {answer.returncode}):\n{answer.stdout[-2000:]}"
            )

    def _write_properties(self) -> None:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._settings,
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        try:
            wait_until(
                lambda: self._answers(process),
                START_SECONDS,
                f"the broker answers at {self.bootstrap_servers}",
                0.1,
            )
        except NeverCame as error:
            raise KafkaBrokerError(f"{error}\n{self.end_of_log}") from error

    def _answers(self, process: subprocess.Popen[bytes]) -> bool | None:
        if process.poll() is not None:
            raise KafkaBrokerError(
                f"The broker ended with exit code {process.returncode} while starting:\n{self.end_of_log}"
            )
        socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        try:
            metadata = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0}).list_topics(
                timeout=5
            )
        except KafkaException as error:
            raise NotYet(str(error)) from error
        return True if metadata.brokers else None


def main() -> int:
    """Run a broker for other hosts until SIGINT or SIGTERM; return 0, or 1 where it ended by itself."""
    folder, host, port = sys.argv[1:]
    listen = f"PLAINTEXT://:{port},CONTROLLER://127.0.0.1:{int(port) + 1}"
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{int(port) + 1}",
        "listeners": listen,
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
    }
    stopped = told_to_stop()
    with KafkaBroker(Path(folder), settings, port=int(port)) as broker:
        print(f"Kafka listens at {host}:{port}.", flush=True)
        while not stopped.wait(1):
            if not broker.runs:
                print(f"The broker ended by itself. The end of {broker.log}:\n{broker.end_of_log}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
