"""Train on a CSV, predict a file, and ask a service, with nothing but the command line and the standard library.

pip install 'gradproof[data,serve]'
python examples/train_and_serve.py [FOLDER]      # half a minute on two cores
"""

import csv
import json
import random
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

GRADPROOF = (sys.executable, "-m", "gradproof")


def write_loans(path, rows, seed):
    """Loans that are approved when income is high for the amount; one in twenty decisions is arbitrary."""
    draw = random.Random(seed)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["income", "amount", "purpose", "approved"])
        for _ in range(rows):
            income, amount = draw.randint(20, 200), draw.randint(1, 100)
            purpose = draw.choice(["car", "house", "study"])
            approved = income > 2 * amount + (30 if purpose == "car" else 0)
            if draw.random() < 0.05:
                approved = draw.random() < 0.5
            table.writerow([income, amount, purpose, "yes" if approved else "no"])


def main(folder):
    write_loans(folder / "loans.csv", 3000, seed=0)
    write_loans(folder / "new.csv", 200, seed=1)
    train = ("train", "--data", folder / "loans.csv", "--target", "approved", "--steps", "300", "--out", folder / "run")
    subprocess.run([*GRADPROOF, *train], check=True)
    predict = ("predict", folder / "run", "--data", folder / "new.csv", "--out", folder / "decided.csv")
    subprocess.run([*GRADPROOF, *predict], check=True)
    print((folder / "decided.csv").read_text().splitlines()[1])
    print(ask(folder / "run", {"income": 180, "amount": 10, "purpose": "house"}))


def ask(run, record):
    """Starts the service on a free port, asks it once, and stops it."""
    serve = [*GRADPROOF, "serve", run, "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as service:
        try:
            url = next(found[0] for line in service.stdout if (found := re.search(r"http://\S+:\d+", line)))
            with urllib.request.urlopen(f"{url}/predict", json.dumps(record).encode(), timeout=60) as answer:
                return json.load(answer)["decision"]
        finally:
            service.terminate()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
