"""Where a measurement is made: the machine that it may be compared on, the software that may change it, and what
disturbs it now. Read by the process that starts the measuring ones, before it changes its own affinity."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from bench import linux
from bench.record import Scalar
from bench.revision import commit

__all__ = ["commit", "digest", "disturbances", "environment", "machine", "stolen_share"]

GIB = 2**30
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_PROC_BIND", "GLIBC_TUNABLES")
_NOT_NAMES = {"amd", "intel", "r", "tm", "cpu", "processor", "apple", "genuine", "common", "kvm", "virtual", "gen"}
_ISA = ("avx512f", "avx2", "avx", "sve2", "sve", "asimd", "neon", "sse2")  # widest first, names as the kernel has them


def machine() -> dict[str, Scalar]:
    """The machine: `id`, and what it is made of. Two machines are the same when their ids are.

    The id is a readable beginning and four hex digits of what a hypervisor cannot mask: vendor, family, model,
    stepping, CPU flags, CPUs allowed by affinity and cgroup, memory in GiB, GPUs, architecture, system. No host
    name, clock or kernel. Only [a-z0-9._-].
    """
    info = linux.cpuinfo()
    hard = _hardware(info)
    flags = sorted((info.get("flags") or info.get("features") or "").split())
    isa = next((word for word in _ISA if word in flags), "").removesuffix("f")
    code = digest({**hard, "flags": " ".join(flags)})[:4]
    parts = [_word(info, hard), _family(hard), isa, f"{hard['cpus']}c", f"{hard['memory_gib']}g", _gpu_word(hard), code]
    name = "-".join(part for part in parts if part)
    return {"id": name, "cpu": info.get("model name") or platform.processor(), "isa": isa, **hard}


def _hardware(info: Mapping[str, str]) -> dict[str, Scalar]:
    """The facts of the digest, but for the long list of flags."""
    return {
        "vendor": info.get("vendor_id") or info.get("cpu implementer", ""),
        "family": info.get("cpu family") or info.get("cpu architecture", ""),
        "model": info.get("model") or info.get("cpu part", ""),
        "stepping": info.get("stepping") or info.get("cpu revision", ""),
        "cpus": allowed_cpus(),
        "memory_gib": round(memory_bytes() / GIB),
        "gpus": "; ".join(gpus()),
        "arch": platform.machine().lower(),
        "os": platform.system().lower(),
    }


def allowed_cpus() -> int:
    """CPUs this process may use at once: by affinity, and by the cgroup's quota rounded up."""
    affinity = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = linux.cpu_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def memory_bytes() -> int:
    """Bytes of memory that this machine, or this container, has."""
    found = linux.memory_bytes()
    if found is not None:
        return found
    import psutil  # only where there is no /proc: the Linux images that measure need not have it

    return int(psutil.virtual_memory().total)


def gpus() -> list[str]:
    """Every GPU that may be used, as its name and memory."""
    from bench.devices import all_devices

    return [unit for device in all_devices().values() if device.missing() is None for unit in device.units()]


def _word(info: Mapping[str, str], hard: Mapping[str, Scalar]) -> str:
    """The family's name out of a model name ("AMD EPYC 7763 64-Core Processor": epyc), which may be masked."""
    words = re.findall(r"[a-z][a-z0-9]*", (info.get("model name") or platform.processor()).lower())
    known = (word for word in words if word not in _NOT_NAMES)
    return next(known, re.sub(r"[^a-z0-9_]", "", str(hard["arch"])) or "cpu")


def _family(hard: Mapping[str, Scalar]) -> str:
    family, model = (re.sub(r"[^a-z0-9]", "", str(hard[name]).lower()) for name in ("family", "model"))
    return f"f{family}m{model}" if family or model else ""


def _gpu_word(hard: Mapping[str, Scalar]) -> str:
    units = [unit for unit in str(hard["gpus"]).split("; ") if unit]
    words = re.findall(r"[a-z0-9]+", units[0].lower()) if units else []
    word = next((w for w in words if w not in ("nvidia", "amd", "tesla", "geforce")), "")
    return f"{len(units)}x{word}" if word else ""


def environment() -> dict[str, Scalar]:
    """The software and settings that may change a number on the same machine; nothing that varies by itself."""
    import torch

    built = torch.__config__.show()
    found: dict[str, Scalar] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_git": torch.version.git_version or "",
        "torch_build": hashlib.sha256(built.encode()).hexdigest()[:12],
        "numpy": _installed("numpy"),
        "triton": _installed("triton"),
        "blas": _built_with(built, r"BLAS_INFO=(\w+)"),
        "mkldnn": _built_with(built, r"MKL-DNN v([\d.]+)"),
        "openmp": _built_with(built, r"OpenMP (\d+)"),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda or "",
        "gpu_driver": linux.gpu_driver(),
        "glibc": " ".join(platform.libc_ver()).strip(),
        "kernel": platform.release(),
        "compiler": _compiler(),
        "governor": linux.governor(),
        "huge_pages": linux.huge_pages(),
        "container": linux.in_container(),
    }
    return found | {name.lower(): os.environ.get(name, "") for name in THREAD_VARIABLES}


def _installed(package: str) -> str:
    try:
        return installed_version(package)
    except PackageNotFoundError:
        return ""


def _built_with(built: str, pattern: str) -> str:
    found = re.search(pattern, built)
    return found[1] if found else ""


def _compiler() -> str:
    """The C++ compiler that torch.compile would take, and its version; "" where there is none."""
    path = next((p for name in (os.environ.get("CXX") or "g++", "clang++") if (p := shutil.which(name))), None)
    if path is None:
        return ""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    return said.partition("\n")[0].strip()


def disturbances() -> dict[str, Scalar]:
    """What varies by itself and spoils measurements: load, CPU seconds stolen and used since the start, clock."""
    stolen, total = linux.cpu_seconds()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"load": load, "stolen_s": stolen, "cpu_s": total, "mhz": linux.mhz()}


def stolen_share(before: Mapping[str, Scalar], after: Mapping[str, Scalar]) -> float:
    """The share of CPU time between two `disturbances` that the hypervisor gave to others; 0 where it is not told."""
    stolen, total = (float(after[name] or 0) - float(before[name] or 0) for name in ("stolen_s", "cpu_s"))
    return stolen / total if total > 0 else 0.0


def digest(facts: Mapping[str, Scalar]) -> str:
    """Twelve hex digits of the facts, whatever their order."""
    canonical = json.dumps(dict(facts), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
