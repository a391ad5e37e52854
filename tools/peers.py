"""Makes sure that the programs tests/peers and bench talk to are there: `make test-peers|bench`.

Installs the missing Debian packages, as root or through sudo, without starting any service
they bring. Where that is not possible it fails and says what to install: a peer test is
never skipped in silence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# program: Debian package
PROGRAMS = {
    "chromium": "chromium",
    "fish": "fish",
    "gcc": "gcc",
    "mosquitto": "mosquitto",
    "mosquitto_pub": "mosquitto-clients",
    "mosquitto_sub": "mosquitto-clients",
    "redis-server": "redis-server",
    "systemd-analyze": "systemd",
    "zsh": "zsh",
}
# Daemons lie in sbin, which is not on everybody's path.
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
POLICY = Path("/usr/sbin/policy-rc.d")


def missing_packages() -> list[str]:
    missing = {
        package for program, package in PROGRAMS.items() if not shutil.which(program, path=SEARCH)
    }
    return sorted(missing)


@contextmanager
def services_stay_down() -> Iterator[None]:
    """A fresh mosquitto, say, would start and take port 1883, which is ours by default."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def install(packages: list[str]) -> str:
    """Install the packages; the answer is empty, or why it was not possible."""
    if not shutil.which("apt-get"):
        return "this machine has no apt-get"
    if os.geteuid() != 0:
        if not shutil.which("sudo"):
            return "installing needs root, and sudo is not available"
        again = ["sudo", "-n", sys.executable, "-B", "-m", "tools.peers"]
        return "" if subprocess.run(again, check=False).returncode == 0 else "sudo failed"
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    with services_stay_down():
        # Lists may be missing (clean machine) or old (the versions they name are gone by now).
        if subprocess.run([*apt, "update"], check=False).returncode != 0:
            return "`apt-get update` failed"
        command = [*apt, "install", "--no-install-recommends", *packages]
        if subprocess.run(command, check=False).returncode != 0:
            return f"`apt-get install {' '.join(packages)}` failed"
    return ""


def main() -> int:
    packages = missing_packages()
    if packages:
        print(f"  peers     installing {' '.join(packages)}", flush=True)
        problem = install(packages)
        packages = missing_packages()
        if problem or packages:
            print(
                f"error: peer tests and benchmarks need {' '.join(packages) or 'their programs'}:"
                f" {problem or 'the packages are installed, but the programs are missing'}.\n"
                f"Install them by hand: apt-get install {' '.join(sorted(set(PROGRAMS.values())))}",
                file=sys.stderr,
            )
            return 1
    print(f"  peers     present: {' '.join(PROGRAMS)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
