#!/usr/bin/env python3
"""Checks the layer rules and the house limits that no compiler lint knows; the rules stand in ARCHITECTURE.md.

Prints every breach as FILE:LINE: RULE and exits 1 when there is one. Needs nothing but Python and cargo.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Who may use whom among our own crates; arrows point down only, and services never know each other.
BASE = {"core", "ops", "net", "proto"}
SERVICES = {"hub", "spoke", "config", "conduit", "branchd", "pair"}
ALLOWED = {
    "core": set(),
    "proto": set(),
    "ops": {"core"},
    "net": {"core", "ops", "proto"},
    "dbdriver": {"core", "ops", "net", "proto"},
    "client": {"core"},
    **{service: BASE | {"dbdriver", "client"} for service in SERVICES},
    "cli": BASE | SERVICES | {"dbdriver", "client"},
    "tests": BASE | SERVICES | {"dbdriver", "client"},
    "benches": BASE | SERVICES | {"dbdriver", "client", "tests"},
}
# What the pure layer may use besides the standard library.
CORE_CRATES = {"serde", "thiserror"}
CORE_WORDS = r"\b(tokio|Instant::now|SystemTime|std::fs|std::net|std::thread|std::process|std::env|rand::)"
# Crates that need `unsafe` for a foreign interface say so here and in their own header.
UNSAFE_CRATES: set[str] = set()

MAX_FILE = 800
MAX_FUNCTION = 60
SEEDS = "crates/core/src/soak.rs"  # compiled for tests only
OWNER_OF_TASKS = "crates/ops/src/tasks.rs"

# rule, pattern, whether test code is free of it, paths where it may stand
WORDS = [
    ("no ignored tests", r"#\[ignore\b", False, ()),
    ("no unfinished code", r"\b(todo|unimplemented)!", False, ()),
    ("tasks have owners: use holdfast_ops::Tasks", r"\b(tokio|task|thread)::(spawn|spawn_blocking)\(", True,
     (OWNER_OF_TASKS, "tests/", "benches/")),
    ("queues are bounded", r"\bunbounded_channel\b|\bunbounded\(\)|sync::mpsc::channel\(", True, ("tests/", "benches/")),
    ("one file owns the consensus library", r"\bopenraft::", True, ("crates/hub/src/store/",)),
    ("one crypto library", r"\bring::", False, ()),
    ("wait for a condition, do not sleep", r"\bsleep\(", False, ("crates/", "benches/", "tests/src/")),
]

breaches: list[str] = []


def breach(where: str, rule: str) -> None:
    breaches.append(f"{where}: {rule}")


def short(package: str) -> str:
    return "cli" if package == "holdfast" else package.removeprefix("holdfast-")


def check_dependencies() -> None:
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    packages = json.loads(text)["packages"]
    ours = {package["name"] for package in packages}
    for package in packages:
        name = short(package["name"])
        manifest = Path(package["manifest_path"])
        where = str(manifest.relative_to(ROOT))
        if name not in ALLOWED:
            breach(where, f"{name} has no place in the layers; give it one in tests/lint/layers.py")
            continue
        for dependency in package["dependencies"]:
            used = dependency["name"]
            if used in ours:
                if dependency["kind"] != "dev" and short(used) not in ALLOWED[name]:
                    breach(where, f"{name} must not use {short(used)}: dependencies point down only")
            elif name == "core" and dependency["kind"] is None and used not in CORE_CRATES:
                breach(where, f"core must stay pure: it may use {', '.join(sorted(CORE_CRATES))}, not {used}")
        forbids = r'^\[lints\]\s*\nworkspace = true|^unsafe_code = "forbid"'
        if not re.search(forbids, manifest.read_text(), re.M) and name not in UNSAFE_CRATES:
            breach(where, "add [lints] workspace = true: unsafe code is forbidden there")
    workspace = (ROOT / "Cargo.toml").read_text()
    if not re.search(r'^unsafe_code = "forbid"', workspace, re.M):
        breach("Cargo.toml", 'unsafe_code must be "forbid"')


def without_comment(line: str) -> str:
    """The line up to a comment. `://` in text is no comment."""
    return re.split(r"(?<!:)//", line, maxsplit=1)[0]


def test_lines(lines: list[str]) -> set[int]:
    """The lines of blocks under #[cfg(test)], by index. Relies on rustfmt: a block ends at its own indentation."""
    inside: set[int] = set()
    index = 0
    while index < len(lines):
        if lines[index].strip() == "#[cfg(test)]":
            start = index
            while index + 1 < len(lines) and lines[index + 1].lstrip().startswith(("#", "//")):
                index += 1
            opening = index + 1
            end = opening
            if opening < len(lines) and lines[opening].rstrip().endswith("{"):
                indent = re.match(r"\s*", lines[opening]).group()
                end = next((i for i in range(opening, len(lines)) if lines[i].rstrip() == indent + "}"), len(lines) - 1)
            inside.update(range(start, end + 1))
            index = end
        index += 1
    return inside


def check_functions(where: str, lines: list[str], tests: set[int]) -> None:
    head = re.compile(r"^(\s*)(pub(\([a-z: ]+\))? )?(const )?(async )?fn (\w+)")
    for index, line in enumerate(lines):
        found = head.match(line)
        if not found or index in tests:
            continue
        indent = found.group(1)
        for end in range(index, len(lines)):
            text = lines[end].rstrip()
            if text == indent + "}":
                if end - index + 1 > MAX_FUNCTION:
                    breach(f"{where}:{index + 1}", f"fn {found.group(6)} has {end - index + 1} lines, limit {MAX_FUNCTION}")
                break
            if text.startswith(indent) and text.endswith((";", "}")) and (end == index or text == indent + ";"):
                break


def check_source(path: Path) -> None:
    where = str(path.relative_to(ROOT))
    if "/generated/" in where:
        return
    lines = path.read_text().splitlines()
    all_tests = path.name.endswith("tests.rs") or "/tests/" in where or where.startswith(("tests/", "benches/"))
    tests = set(range(len(lines))) if all_tests else test_lines(lines)
    first = next((line for line in lines if line.strip()), "")
    # A child file of tests belongs to the file whose header stands beside it.
    if not first.startswith("//!") and not path.name.endswith("tests.rs"):
        breach(f"{where}:1", "a file begins with //! and says what it owns")
    if not all_tests and len(lines) - len(tests) > MAX_FILE:
        breach(where, f"{len(lines) - len(tests)} lines without tests, limit {MAX_FILE}")
    check_functions(where, lines, tests)
    for index, line in enumerate(lines):
        code = without_comment(line)
        reason = "sleep:" in line or (index > 0 and "sleep:" in lines[index - 1])
        for rule, pattern, tests_free, allowed in WORDS:
            if tests_free and index in tests or where.startswith(allowed) or not re.search(pattern, code):
                continue
            if not (reason and "sleep" in pattern):
                breach(f"{where}:{index + 1}", rule)
        if where.startswith("crates/core/src/") and where != SEEDS and index not in tests and re.search(CORE_WORDS, code):
            breach(f"{where}:{index + 1}", "core is pure: no clock, randomness, files, sockets, threads or tokio")


def main() -> int:
    check_dependencies()
    for folder in ("crates", "tests", "benches"):
        for path in sorted((ROOT / folder).rglob("*.rs")):
            check_source(path)
    for text in breaches:
        print(text)
    print(f"layers: {len(breaches)} breach(es)" if breaches else "layers: all rules hold")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
