"""What is done to the pair, one function per event, and what must be true afterwards."""

from __future__ import annotations

import json

from compose.commands import ComposeTestError, say, wait_until
from compose.stack import NODES, Load, Stack, other


def _must(is_so: bool, what: str) -> None:
    if not is_so:
        raise ComposeTestError(f"must be so, and is not: {what}")


def _nothing_lost(load: Load) -> str:
    last = load.wait_calls()
    _must(last["lost"] == 0 and not load.of_type("lost"), f"no call is lost: {load.of_type('lost')[:5]}")
    _must(last["crossed"] == 0, "no reply is crossed")
    return f"{last['answered']} calls answered, 0 lost, 0 crossed"


def _failover_to(load: Load, node: str, before: int) -> str:
    """The failover that came after so many of them."""
    found = wait_until(
        f"the client has failed over to the {node}",
        lambda: [f for f in load.of_type("failover")[before:] if f["to_endpoint"] == f"tcp://{node}:5001"],
    )[0]
    gap_s, why, waiting = found["gap_s"], found["reason"], found["outstanding"]
    return f"failover to the {node} in {gap_s:.3f} s ({why}), {waiting} waiting"


def begins(stack: Stack, load: Load) -> None:
    """Everything works before anything is broken."""
    stack.wait_pair("primary")
    say(f"the primary serves, the backup stands by: {_nothing_lost(load)}")
    wait_until("Prometheus scrapes both", lambda: stack.up() == {"primary:9401": "up", "backup:9401": "up"})
    found = stack.prometheus("query", query="sum(bstar_active)")
    _must(found["result"][0]["value"][1] == "1", f"sum(bstar_active) is 1: {found}")
    stack.wait_quiet()
    say("Prometheus scrapes both nodes, sum(bstar_active) is 1, no alert fires")


def is_locked_up(stack: Stack) -> None:
    """A node runs as a user without rights, writes to its volume only, and is number 2, after init."""
    for node in NODES:
        user = stack.execute(node, "id", "-u").stdout.strip()
        _must(user == "10001", f"the {node} runs as user 10001, not {user}")
        for path in ("/x", "/opt/bstar/x", "/etc/bstar/x"):
            _must(
                stack.execute(node, "touch", path).returncode != 0, f"{path} cannot be written by the {node}"
            )
        _must(stack.execute(node, "touch", "/tmp/x").returncode == 0, "/tmp can be written")
        _must(
            stack.execute(node, "test", "-w", "/var/lib/bstar").returncode == 0, "the volume can be written"
        )
        found = stack.inspect(node)
        _must(found["HostConfig"]["ReadonlyRootfs"] is True, "the root is read-only")
        _must(found["HostConfig"]["CapDrop"] == ["ALL"], "no capability is left")
        published = [each for ports in found["NetworkSettings"]["Ports"].values() for each in ports or []]
        _must({each["HostIp"] for each in published} == {"127.0.0.1"}, "ports are published on loopback only")
        status = stack.execute(node, "cat", "/proc/1/comm").stdout.strip()
        _must(status in ("docker-init", "tini"), f"process 1 is an init: {status}")
    kept = stack.execute("primary", "ls", "/var/lib/bstar").stdout.split()
    _must("epoch" in kept, "the primary's epoch is in its volume")
    owned = stack.execute("worker-1", "ls", "/keys").stdout.split()
    _must(owned == ["backup.pub", "own.key", "primary.pub"], f"a worker has its own key alone: {owned}")
    shown = stack.execute("load", "bstar", "status", "--json")
    _must(shown.returncode == 0, f"bstar status in a client's container: {shown.stdout}{shown.stderr}")
    _must(json.loads(shown.stdout)["healthy"] is True, "bstar status says healthy")
    say(
        "user 10001, read-only root, no capabilities, ports on loopback, the epoch in its volume; "
        "bstar status: healthy"
    )


def kill_of_the_active(stack: Stack, load: Load) -> None:
    """``kill`` of the active node, and its return."""
    active = stack.active()
    standby, failovers = other(active), len(load.of_type("failover"))
    say(f"EVENT: compose kill {active}")
    stack.compose("kill", active)
    told = _failover_to(load, standby, failovers)
    say(f"{told}; {_nothing_lost(load)}")
    stack.wait_alerts("BstarTargetDown", "BstarPeerLinkDown")
    say("BstarTargetDown and BstarPeerLinkDown fire")
    _must("BstarNoneActive" not in stack.firing(), "the pair serves, so BstarNoneActive is quiet")
    stack.compose("start", active)
    stack.wait_pair(standby)
    stack.wait_healthy()
    stack.wait_quiet()
    say(f"the {active} is back and stands by, the alerts have resolved; {_nothing_lost(load)}")


def pause_of_the_active(stack: Stack, load: Load) -> None:
    """``pause`` of the active node: it stands still, holds its connections, and must not wake up serving."""
    active = stack.active()
    standby, failovers = other(active), len(load.of_type("failover"))
    say(f"EVENT: compose pause {active}")
    wait_until(f"the {active} is paused", lambda: stack.try_pause(active))
    told = _failover_to(load, standby, failovers)
    say(f"{told}; {_nothing_lost(load)}")
    stack.compose("unpause", active)
    stack.wait_pair(standby)
    say(f"the {active} woke up and stands by; {_nothing_lost(load)}")


def active_cut_off_from_its_clients(stack: Stack, load: Load) -> None:
    """The active node loses its clients but not its peer: nobody takes over until an operator stops it."""
    active = stack.active()
    standby, failovers = other(active), len(load.of_type("failover"))
    say(f"EVENT: the {active} is disconnected from the clients' network")
    network, container = stack.network("clients"), stack.container(active)
    stack.docker("network", "disconnect", network, container)
    waiting = load.wait_second("calls wait", lambda line: line["waiting"] > 20)
    _must(len(load.of_type("failover")) == failovers, "a node whose peer serves does not take over")
    say(
        f"{waiting['waiting']} calls wait: the {standby} hears that the {active} serves. EVENT: stop {active}"
    )
    stack.compose("stop", active)
    told = _failover_to(load, standby, failovers)
    say(f"{told}; {_nothing_lost(load)}")
    stack.docker("network", "connect", "--alias", active, network, container)
    stack.compose("start", active)
    stack.wait_pair(standby)
    say(f"the {active} is connected again and stands by; {_nothing_lost(load)}")


def peer_link_cut(stack: Stack, load: Load) -> None:
    """The nodes lose each other but not their clients: the role stays where the clients are."""
    active = stack.active()
    standby, failovers = other(active), len(load.of_type("failover"))
    say("EVENT: the nodes are disconnected from each other")
    network, container = stack.network("peers"), stack.container(standby)
    stack.docker("network", "disconnect", network, container)
    stack.wait_alerts("BstarPeerLinkDown")
    _must(stack.state(active) == "ACTIVE", f"the {active} serves on")
    _must(stack.state(standby) == "PASSIVE", f"nobody asked the {standby}, so it does not serve")
    say(f"BstarPeerLinkDown fires, the {active} serves on; {_nothing_lost(load)}")
    stack.docker("network", "connect", "--alias", f"{standby}-state", network, container)
    stack.wait_pair(active)
    stack.wait_quiet()
    _must(len(load.of_type("failover")) == failovers, "the role did not move")
    say(f"they hear each other again, the role did not move, the alert has resolved; {_nothing_lost(load)}")


def stop_of_the_active(stack: Stack, load: Load) -> None:
    """A planned stop: the role is handed over."""
    active = stack.active()
    standby, failovers = other(active), len(load.of_type("failover"))
    say(f"EVENT: compose stop {active}")
    stack.compose("stop", active)
    status = stack.inspect(active)["State"]["ExitCode"]
    _must(status == 0, f"the {active} ends with status 0, not {status}")
    told = _failover_to(load, standby, failovers)
    say(f"status 0; {told}; {_nothing_lost(load)}")
    stack.compose("start", active)
    stack.wait_pair(standby)
    say(f"the {active} is back and stands by; {_nothing_lost(load)}")


def change_of_all_containers(stack: Stack, load: Load) -> None:
    """The rolling recipe: every container is a new one, and no call is lost."""
    active = stack.active()
    before = {service: stack.container(service) for service in (*NODES, "worker-1", "worker-2")}
    failovers = len(load.of_type("failover"))
    say("EVENT: configs/compose-roll.sh --force-recreate")
    stack.roll("--force-recreate")
    kept = [service for service, container in before.items() if stack.container(service) == container]
    _must(not kept, f"every container was made anew, also {kept}")
    told = _failover_to(load, other(active), failovers)
    stack.wait_pair(other(active))
    say(f"all new; {told}; {_nothing_lost(load)}")


def end_of_the_client(stack: Stack, load: Load) -> None:
    """The client is stopped and tells its sum."""
    stack.compose("stop", "load")
    total = load.wait_sum()
    _must(total["ok"] is True, f"the client's sum is without loss: {total}")
    _must(stack.inspect("load")["State"]["ExitCode"] == 0, "the client ends with status 0")
    say(
        f"the client's sum: {total['sent']} calls in {total['seconds']:.0f} s, {total['lost']} lost, "
        f"{total['crossed']} crossed, {total['failovers']} failovers, "
        f"longest call {total['longest_call_s']:.3f} s"
    )


def both_down(stack: Stack) -> None:
    """Both nodes are killed: the alert that nobody serves; and the pair comes back by itself."""
    say("EVENT: compose kill primary backup")
    stack.compose("kill", *NODES)
    stack.wait_alerts("BstarNoneActive")
    say("BstarNoneActive fires")
    stack.compose("start", *NODES)
    wait_until("one node serves", lambda: "ACTIVE" in [stack.state(node) for node in NODES])
    stack.wait_pair(stack.active())
    stack.wait_quiet()
    refused = stack.execute("worker-1", "bstar", "call", "echo", "again")
    _must("may not call" in refused.stderr, f"a worker's key does not call: {refused.stdout}{refused.stderr}")
    reply = stack.compose("run", "--rm", "-T", "--no-deps", "load", "call", "echo", "again")
    _must(reply == "again", f"a call is answered: {reply}")
    say("the pair is back, the alert has resolved, a call is answered")


def link_through_toxiproxy(stack: Stack, load: Load) -> None:
    """The state link is slow, then cut, then whole again; the clients' link is not touched."""
    failovers = len(load.of_type("failover"))
    say("EVENT: 50 ms of latency on both directions of the state link")
    for proxy in ("primary_hears_backup", "backup_hears_primary"):
        toxic = {"name": "slow", "type": "latency", "attributes": {"latency": 50}}
        stack.toxiproxy(f"/proxies/{proxy}/toxics", toxic)
    say(f"below the failover timeout nothing happens: {_nothing_lost(load)}")
    _must(len(load.of_type("failover")) == failovers, "the role did not move")
    stack.wait_pair("primary")
    say("EVENT: the link is cut in both directions")
    for proxy in ("primary_hears_backup", "backup_hears_primary"):
        stack.toxiproxy(f"/proxies/{proxy}", {"enabled": False})
    stack.wait_alerts("BstarPeerLinkDown")
    say(f"BstarPeerLinkDown fires; {_nothing_lost(load)}")
    for proxy in ("primary_hears_backup", "backup_hears_primary"):
        stack.toxiproxy(f"/proxies/{proxy}", {"enabled": True})
    stack.wait_pair("primary")
    stack.wait_quiet()
    say(f"the link is whole again; {_nothing_lost(load)}")
