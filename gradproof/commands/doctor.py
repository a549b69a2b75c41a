"""`gradproof doctor`. Everything heavy is imported inside."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from typing import Any

from gradproof.commands.kernel_survey import kernel_table, surveyed
from gradproof.commands.options import Debug, Device, Json, NoSeed
from gradproof.commands.terminal import check_outputs, console_for, errors, write
from gradproof.version import __version__

PURPOSES = {
    "data": "train on CSV and Parquet files",
    "serve": "serve predictions over HTTP",
    "gate": "guard an agent's tool calls",
    "mcp": "put the gate between an MCP client and its server",
    "ablate": "compare with scikit-learn's models",
    "export": "write ONNX files",
    "tensorboard": "log training to TensorBoard",
    "ray": "run studies on a Ray cluster",
}


def doctor(json: Json = None, seed: NoSeed = 0, debug: Debug = False) -> None:
    """Show what is installed, proven and missing on this machine.

    Kernels that are not proven yet are proven first, which takes a minute or two, once per machine. The last lines say
    what to type for each missing part. All of these parts are optional.

    \b
    Examples:
      gradproof doctor
      gradproof doctor --json -
    """
    with errors(debug):
        from json import dumps

        check_outputs(json, None)
        extras = _extras()
        environment = _environment()
        device = Device.cuda if environment["gpu"] else Device.cpu
        kernels = [
            {name: variant[name] for name in ("op", "kernel", "dtype", "status", "claims", "reason")}
            for variant in surveyed(device)
        ]
        missing = _missing(environment, extras)
        record = {"environment": environment, "extras": extras, "kernels": kernels, "missing": missing}
        _show(record, console_for(json))
        write(record, dumps(record, indent=1), json)


def _environment() -> dict[str, Any]:
    import torch

    from gradproof.kernels.cache import folder
    from gradproof.kernels.cpu.build import compiler

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "gradproof": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": str(torch.__version__),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "compiler": compiler() or None,
        "gpu": gpu,
        "cuda": torch.version.cuda,
        "triton": _version("triton") or _version("pytorch-triton"),
        "cache": str(folder()),
    }


def _extras() -> list[dict[str, Any]]:
    """What each extra needs and has, as the installed package's metadata lists it."""
    listed = []
    for extra, purpose in PURPOSES.items():
        needed = requirements(metadata.requires("gradproof") or [], extra)
        installed = {name: _version(name) for name in needed}
        absent = [name for name, version in installed.items() if version is None]
        status = "missing" if absent else "installed"
        listed.append({"extra": extra, "purpose": purpose, "status": status, "packages": installed, "missing": absent})
    return listed


def requirements(required: list[str], extra: str) -> list[str]:
    """The packages of an extra, out of lines such as `polars>=1.34; extra == 'data'`; those of other systems left
    out."""
    names = []
    for line in required:
        requirement, _, marker = line.partition(";")
        if re.search(rf"extra == ['\"]{extra}['\"]", marker) is None:
            continue
        if "sys_platform != 'win32'" in marker.replace('"', "'") and platform.system() == "Windows":
            continue
        names += re.findall(r"^[A-Za-z0-9._-]+", requirement.strip())
    return names


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _missing(environment: dict[str, Any], extras: list[dict[str, Any]]) -> list[str]:
    """A sentence for each missing thing, with what to type."""
    from gradproof.kernels.cpu.build import available

    sentences = []
    reason = available()
    if reason is not None:
        sentences.append(f"{reason[0].upper()}{reason[1:]}. Training on a CPU is slower without them.")
    if environment["gpu"] is None:
        build = f"built for CUDA {environment['cuda']}" if environment["cuda"] else "a CPU build"
        sentences.append(f"No GPU: torch {environment['torch']} ({build}) sees none. Use --device cpu, the default.")
    elif environment["triton"] is None:
        sentences.append("No Triton: most GPU kernels are off. Type: pip install triton")
    for extra in extras:
        if extra["missing"]:
            command = f"pip install 'gradproof[{extra['extra']}]'"
            sentences.append(f"To {extra['purpose']} ({', '.join(extra['missing'])} missing), type: {command}")
    return sentences


def _show(record: dict[str, Any], console: Any) -> None:
    from rich.table import Table

    environment = record["environment"]
    facts = Table.grid(padding=(0, 2))
    facts.add_row("gradproof", f"{environment['gradproof']}, Python {environment['python']}, {environment['system']}")
    facts.add_row("torch", f"{environment['torch']}, {environment['threads']} of {environment['processors']} cores")
    facts.add_row("compiler", environment["compiler"] or "none")
    facts.add_row("GPU", environment["gpu"] or "none")
    facts.add_row("cache", environment["cache"])
    console.print(facts)
    console.print()
    extras = Table("extra", "status", "for", box=None, pad_edge=False)
    for extra in record["extras"]:
        colour = "yellow" if extra["missing"] else "green"
        extras.add_row(extra["extra"], f"[{colour}]{extra['status']}[/]", f"to {extra['purpose']}")
    console.print(extras)
    console.print()
    console.print(kernel_table(record["kernels"]))
    admitted = sum(variant["status"] == "admitted" for variant in record["kernels"])
    console.print(f"{admitted} of {len(record['kernels'])} kernels are proven on this machine.")
    for sentence in record["missing"]:
        console.print(sentence, soft_wrap=True, markup=False)
    if not record["missing"]:
        console.print("Nothing is missing.")
