"""Turns the text of a real run into an SVG picture of a terminal.

usage: terminal.py TITLE < captured.txt > picture.svg
"""

import html
import sys

CHAR, LINE, PAD, TOP = 8.43, 19, 18, 40

title = sys.argv[1]
lines = [line.rstrip("\n").expandtabs() for line in sys.stdin]
width = max(map(len, lines)) * CHAR + 2 * PAD
height = len(lines) * LINE + TOP + PAD


def colour(line):
    if line.startswith("$ "):
        return "#7ee787"
    if line.startswith(("#", "[")):
        return "#79c0ff"
    return "#e6edf3"


print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">')
print('<rect width="100%" height="100%" rx="8" fill="#0d1117"/>')
for i, dot in enumerate(("#ff5f56", "#ffbd2e", "#27c93f")):
    print(f'<circle cx="{PAD + i * 18}" cy="18" r="5.5" fill="{dot}"/>')
print(f'<text x="50%" y="22" text-anchor="middle" font-family="sans-serif" font-size="12" fill="#8b949e">{html.escape(title)}</text>')
print('<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="14" xml:space="preserve">')
for i, line in enumerate(lines):
    y = TOP + i * LINE + 14
    print(f'<text x="{PAD}" y="{y}" fill="{colour(line)}" textLength="{len(line) * CHAR:.0f}">{html.escape(line)}</text>' if line else "", end="\n" if line else "")
print("</g></svg>")
