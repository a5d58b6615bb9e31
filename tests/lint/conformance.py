#!/usr/bin/env python3
"""Reads the ledgers docs/conformance/<role>.md: one row for each clause that the role must fulfil.

usage: conformance.py ROLE     prints what is not proved yet
       conformance.py --check  fails when a ledger is untrue: a clause missing or twice, `done` without a proof,
                               or a proof that does not exist

A row is `| id | what | proof | state |`. A proof is `path/of/file.rs::test_name` or `bench:ID`, several with
commas between them; state is done, part or open. The ids that a ledger must have stand in it, in lines such as
`<!-- expected: A.1-01..A.1-12 S-01..S-43 -->`.
"""

import functools
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LEDGERS = ROOT / "docs" / "conformance"
STATES = ("done", "part", "open")


class Row(NamedTuple):
    line: int
    id: str
    what: str
    proofs: list[str]
    state: str


def expected_ids(text: str) -> list[str]:
    ids: list[str] = []
    for words in re.findall(r"<!-- expected:(.*?)-->", text, re.S):
        for word in words.split():
            first, _, last = word.partition("..")
            prefix, start = first.rsplit("-", 1)
            end = last.rsplit("-", 1)[1] if last else start
            ids += [f"{prefix}-{number:0{len(start)}d}" for number in range(int(start), int(end) + 1)]
    return ids


def read_rows(text: str) -> list[Row]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if not line.startswith("|") or not re.match(r"^[A-Z][A-Z0-9.]*-\d+$", cells[0]):
            continue
        cells += [""] * (4 - len(cells))
        proofs = [proof for proof in re.split(r"[,\s]+", cells[2].replace("`", "")) if proof]
        rows.append(Row(number, cells[0], cells[1], proofs, cells[3]))
    return rows


@functools.cache
def source(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@functools.cache
def bench_source() -> str:
    return "\n".join(source(path) for path in sorted((ROOT / "benches").rglob("*.rs")))


def proof_fault(proof: str) -> str | None:
    """Why a proof does not exist; None when it does."""
    if proof.startswith("bench:"):
        name = proof.removeprefix("bench:")
        return None if re.search(rf"\b{re.escape(name)}\b", bench_source()) else f"no benchmark names {name}"
    where, _, name = proof.rpartition("::")
    path = ROOT / where
    if not where or not path.is_file():
        return f"{where or proof} is not a file"
    keyword = "def" if path.suffix == ".py" else "fn"
    found = re.search(rf"^\s*(?:pub )?(?:async )?{keyword} {re.escape(name)}\b", source(path), re.M)
    if not found:
        return f"{where} has no {keyword} {name}"
    before = source(path)[: found.start()].splitlines()[-6:]
    is_test = any(re.match(r"\s*#\[.*test", line) for line in before) or "proptest!" in source(path)
    return None if path.suffix == ".py" or is_test else f"{name} in {where} is not a test"


def check(path: Path) -> list[str]:
    text = path.read_text()
    rows = read_rows(text)
    expected = expected_ids(text)
    where = path.relative_to(ROOT)
    faults = []
    if not expected:
        faults.append(f"{where}: names no expected ids")
    seen: set[str] = set()
    for row in rows:
        at = f"{where}:{row.line}: {row.id}"
        if row.id in seen:
            faults.append(f"{at} occurs twice")
        seen.add(row.id)
        if row.id not in expected:
            faults.append(f"{at} is not an expected id")
        if not row.what:
            faults.append(f"{at} says nothing")
        if row.state not in STATES:
            faults.append(f"{at} has state {row.state!r}, not one of {', '.join(STATES)}")
        if row.state == "done" and not row.proofs:
            faults.append(f"{at} is done without a proof")
        faults += [f"{at}: {fault}" for fault in map(proof_fault, row.proofs) if fault]
    faults += [f"{where}: {missing} has no row" for missing in expected if missing not in seen]
    return faults


def show(path: Path) -> None:
    rows = read_rows(path.read_text())
    missing = [row for row in rows if row.state != "done"]
    width = max((len(row.id) for row in missing), default=0)
    for row in missing:
        print(f"{row.id:<{width}}  {row.state:<4}  {row.what.replace(chr(92) + '|', '|')}")
    counts = {state: sum(row.state == state for row in rows) for state in STATES}
    print(f"{len(rows)} clauses: " + ", ".join(f"{count} {state}" for state, count in counts.items()))


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: ./dev conformance ROLE | --check", file=sys.stderr)
        return 2
    if arguments[0] == "--check":
        ledgers = sorted(LEDGERS.glob("*.md"))
        faults = [fault for path in ledgers for fault in check(path)]
        for fault in faults:
            print(fault)
        print(f"conformance: {len(ledgers)} ledger(s), {len(faults)} fault(s)")
        return 1 if faults else 0
    path = LEDGERS / f"{arguments[0]}.md"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in LEDGERS.glob("*.md")))
        print(f"no ledger for {arguments[0]}; there are: {known}", file=sys.stderr)
        return 2
    show(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
