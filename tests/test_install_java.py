"""The set-up of Java: what is there is taken, root gets what is missing, and everybody else is told how."""

import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "tools" / "install-java"
NEW = 'openjdk version "17.0.15" 2025-04-15'
OLD = 'java version "1.8.0_292"'


class Machine:
    """A PATH of its own: the commands that the program needs, and made-up apt-get, apt-cache, id and java."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.apt_calls = folder / "apt-calls"
        for name in ("bash", "sed", "head", "env"):
            found = next(path for path in (Path("/usr/bin", name), Path("/bin", name)) if path.exists())
            (self.bin / name).symlink_to(found)

    def write(self, name: str, script: str, folder: Path | None = None) -> None:
        file = (folder or self.bin) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def java(self, says: str, folder: Path | None = None) -> None:
        self.write("java", f"echo '{says}' >&2", folder)

    def debian(
        self, *packages: str, user: int = 0, known_before_update: bool = True, comes: str = NEW
    ) -> None:
        """apt that knows the packages (perhaps only after an update), and whose java says what ``comes``."""
        lists = self.bin.parent / "lists"
        if known_before_update:
            lists.touch()
        self.write("id", f"echo {user}")
        names = "|".join(packages) or "nothing"
        self.write(
            "apt-cache",
            f'[ -e {lists} ] || exit 0\ncase "$3" in {names}) echo "  Candidate: 17.0.1" ;; '
            f'*) echo "  Candidate: (none)" ;; esac',
        )
        self.java(comes, self.bin.parent / "package")
        install = f"/bin/cp {self.bin.parent}/package/java {self.bin}/java"
        self.write(
            "apt-get",
            f'echo "$*" >> {self.apt_calls}\ncase "$1" in update) : > {lists} ;; install) {install} ;; esac',
        )

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAM)],
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def asked_of_apt(self) -> list[str]:
        return self.apt_calls.read_text().splitlines() if self.apt_calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def install(package: str) -> str:
    return f"install -y -qq --no-install-recommends {package}"


@pytest.mark.loopback
@pytest.mark.parametrize(
    "says", [NEW, 'openjdk version "21" 2023-09-19', 'java version "25.0.1" 2025-10-21 LTS']
)
def test_a_java_on_the_path_is_enough(machine: Machine, says: str) -> None:
    machine.java(says)
    machine.debian("openjdk-17-jre-headless")
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.asked_of_apt() == []


@pytest.mark.loopback
def test_java_home_counts_before_the_path(machine: Machine, tmp_path: Path) -> None:
    machine.java(OLD)
    machine.java(NEW, tmp_path / "jdk" / "bin")
    assert machine.run(JAVA_HOME=str(tmp_path / "jdk")).returncode == 0


@pytest.mark.loopback
@pytest.mark.parametrize("says", [OLD, None])
def test_a_java_home_that_is_of_no_use_is_told_and_not_got_round(
    machine: Machine, tmp_path: Path, says: str | None
) -> None:
    machine.java(NEW)
    machine.debian("openjdk-17-jre-headless")
    if says:
        machine.java(says, tmp_path / "jdk" / "bin")
    done = machine.run(JAVA_HOME=str(tmp_path / "jdk"))
    assert done.returncode == 1
    assert f"JAVA_HOME is {tmp_path / 'jdk'}, which holds {'Java 8' if says else 'none'}" in done.stderr
    assert machine.asked_of_apt() == []


@pytest.mark.loopback
@pytest.mark.parametrize("says", [OLD, None])
def test_root_on_debian_gets_it_installed(machine: Machine, says: str | None) -> None:
    if says:
        machine.java(says)
    machine.debian("openjdk-17-jre-headless", "openjdk-21-jre-headless")
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert machine.asked_of_apt() == [install("openjdk-17-jre-headless")]


@pytest.mark.loopback
def test_a_debian_without_that_number_gets_the_next(machine: Machine) -> None:
    machine.debian("openjdk-21-jre-headless", "openjdk-25-jre-headless", known_before_update=False)
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert machine.asked_of_apt() == ["update -qq", install("openjdk-21-jre-headless")]


@pytest.mark.loopback
def test_who_is_not_root_is_told_the_command(machine: Machine) -> None:
    machine.debian("openjdk-17-jre-headless", user=1000)
    done = machine.run()
    assert done.returncode == 1
    assert "sudo apt-get install openjdk-17-jre-headless" in done.stderr
    assert "`make demo` do without" in done.stderr
    assert machine.asked_of_apt() == []


@pytest.mark.loopback
def test_a_machine_without_apt_is_told_what_to_do(machine: Machine) -> None:
    done = machine.run()
    assert done.returncode == 1
    assert "Java 17 or newer; on the PATH there is none" in done.stderr
    assert "JAVA_HOME" in done.stderr


@pytest.mark.loopback
def test_apt_that_knows_no_java_is_told(machine: Machine) -> None:
    machine.debian()
    done = machine.run()
    assert done.returncode == 1
    assert "apt knows none of openjdk-17-jre-headless" in done.stderr


@pytest.mark.loopback
def test_an_installed_java_that_is_not_the_one_on_the_path_is_told(machine: Machine) -> None:
    machine.debian("openjdk-17-jre-headless", comes=OLD)
    done = machine.run()
    assert done.returncode == 1
    assert "openjdk-17-jre-headless is installed, but the java on the PATH is 8" in done.stderr
