"""kill -9 of daemon and learner under load: started again, and no acknowledged signal or audit line is lost."""

import os
import random
import signal
import threading
import time

import pytest

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from daemon_process import DaemonProcess, daemons_of, until
from made_calls import rows

from gradproof.gate.client import GateClient
from gradproof.gate.daemon import tokens_of
from gradproof.gate.exchange import NoAnswer
from gradproof.gate.founding import found
from gradproof.gate.serving import load_serving
from gradproof.gate.store import Settings, Store

KINDS = ("false_block", "override_allow", "override_block", "false_allow")


class Acknowledged:
    """What a daemon said was done, by two agents and a reviewer who go on until it dies."""

    def __init__(self, daemon, token):
        self.daemon, self.token = daemon, token
        self.decisions, self.signals, self.ended = [], [], threading.Event()
        self.threads = [threading.Thread(target=self._go_on, args=(i,)) for i in range(3)]
        for thread in self.threads:
            thread.start()

    def _go_on(self, number):
        draws = random.Random(number)
        try:
            while not self.ended.is_set():
                status, answer = self.daemon.ask("POST", "/v1/decide", {"command": f"make {draws.random()}"}, timeout=5)
                if status == 200:
                    self.decisions.append(answer["id"])
                if number == 0 and status == 200:
                    body = {"id": answer["id"], "kind": draws.choice(KINDS)}
                    status, given = self.daemon.ask("POST", "/v1/feedback", body, token=self.token, timeout=5)
                    if status == 200:
                        self.signals.append((answer["id"], given["sequence"]))
        except OSError:
            pass  # it was killed
        except Exception as error:
            if "http" not in type(error).__module__ and "json" not in type(error).__module__:  # half an answer is none
                raise

    def end(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(30)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [5])
def test_nothing_acknowledged_is_lost(tmp_path, trained, kills):
    folder, draws = tmp_path / "gate", random.Random(1)
    store = Store.create(folder, Settings(journal_mebibytes=64, versions_mebibytes=64))
    found(store, trained.copy(), rows(40), rows(30, 100), people=False)
    token = tokens_of(folder).add("ann", "admin")
    store.close()
    decisions, signals, lines = [], [], 0
    for kill in range(kills):
        daemon = DaemonProcess(folder)
        said = Acknowledged(daemon, token)
        time.sleep(draws.uniform(2, 6))
        learner = daemon.ask("GET", "/v1/status", token=token)[1]["daemon"]["learner"]["pid"]
        if learner and kill % 2:
            os.kill(learner, signal.SIGKILL)
            time.sleep(draws.uniform(0, 2))
        daemon.end(signal.SIGKILL)
        said.end()
        decisions += said.decisions
        signals += said.signals
        store = Store(folder)
        kept = {(signal["decision"], signal["sequence"]) for signal in store.journal.signals()}
        assert set(signals) <= kept
        report = store.audit.check()
        assert report.whole, report.problems
        assert report.lines >= lines
        lines = report.lines
        logged = store.audit.lines(0, 10**6)
        told = {line["id"] for line in logged if line["kind"] == "decision"}
        assert set(decisions) <= told
        assert {id for id, _ in signals} <= {line["id"] for line in logged if line["kind"] == "feedback"}
        assert load_serving(store).number >= 1
        store.close()
    print(f"{kills} kills, {len(decisions)} decisions and {len(signals)} signals acknowledged, none lost")
    assert len(decisions) > 20 * kills and len(signals) > 3 * kills


@pytest.mark.slow
def test_agents_start_a_killed_daemon_again(tmp_path, trained):
    """kill -9 while four of them ask: one daemon comes back each time, and every decision they got is in the log."""
    folder = tmp_path / "gate"
    store = Store.create(folder, Settings(journal_mebibytes=64, versions_mebibytes=64))
    found(store, trained.copy(), rows(40), rows(30, 100), people=False)
    decided, refused, ended = [], [], threading.Event()

    def ask(number):
        client, draws = GateClient(str(folder), warm=60.0, cold=60.0), random.Random(number)
        while not ended.is_set():
            try:
                decided.append(client.decide({"command": f"make {draws.random()}"})["id"])
            except NoAnswer as error:  # the daemon died over it: to an agent that is no allow
                refused.append(str(error))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    killed = set()
    try:
        for _ in range(4):
            before = len(decided)
            until(lambda before=before: len(decided) > before + 50)
            (pid,) = set(daemons_of(folder)) - killed
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        before = len(decided)
        until(lambda: len(decided) > before + 50)
    finally:
        ended.set()
        for thread in threads:
            thread.join(90)
        for pid in set(daemons_of(folder)) - killed:
            os.kill(pid, signal.SIGTERM)
    assert all("closed the connection" in why or "cannot be reached" in why for why in refused), refused
    report = store.audit.check()
    assert report.whole, report.problems
    told = {line["id"] for line in store.audit.lines(0, 10**6) if line["kind"] == "decision"}
    assert set(decided) <= told and len(killed) == 4
    store.close()
