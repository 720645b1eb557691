"""Test texts for tokenizers: prose, code, many scripts, random UTF-8, and difficult cases for split patterns. The texts
depend only on the seed and the files found; no text contains a zero byte."""
import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"

# Code point ranges of letters, digits, marks and symbols of many scripts.
SCRIPTS = [
    [(0x41, 0x5A), (0x61, 0x7A)], [(0xC0, 0x24F)], [(0x370, 0x3FF)], [(0x400, 0x52F)], [(0x531, 0x556), (0x561, 0x587)],
    [(0x5D0, 0x5EA), (0x591, 0x5C7)], [(0x620, 0x64A), (0x64B, 0x65F), (0x660, 0x669)], [(0x904, 0x939), (0x93E, 0x94D)],
    [(0x985, 0x9B9), (0x9BE, 0x9CD), (0x9E6, 0x9EF)], [(0xE01, 0xE3A), (0xE40, 0xE4E)], [(0x10A0, 0x10FF)],
    [(0x1100, 0x11FF)], [(0x3041, 0x3096)], [(0x30A1, 0x30FA)], [(0x4E00, 0x9FFF)], [(0xAC00, 0xD7A3)],
    [(0x1F300, 0x1F64F), (0x200D, 0x200D), (0xFE0F, 0xFE0F)], [(0x2070, 0x218B)], [(0xFF10, 0xFF5A)],
    [(0x1D400, 0x1D7FF)], [(0x10400, 0x1044F)], [(0x300, 0x36F), (0x61, 0x66)], [(0x1E900, 0x1E943)],
]
EDGE_CASES = ["'s", "'S", "'\u017f", "'LL", "'ll", "'Re", "'ve", "'m", "'T", "'", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t",
              "\u00a0", "\u3000", "\u2028", "\u0085", "\x0b", "a", "Z", "word", "Word", "WORD", "wOrd", "\u00e9", "e\u0301", "\u0301", "\u01c5",
              "\u02b0", "\u3042", "1", "23", "456", "7890", "\u00bd", "\u0663", "\u2167", "/", "//", ".", "...", "-", "\u2014", "_", "<|endoftext|",
              "\ufeff", "\u200b", "\U0001f600", "\U0001f468\u200d\U0001f469", "\x7f", "\x01", "[", "]", "##", "\u2581", "\u4e2d\u6587", "\u0130", "\u00df", "\ufffd"]


def prose():
    lines = []
    for name in ("wikitext-2/valid.txt", "wikitext-2/test.txt", "tinyshakespeare.txt"):
        path = SHARED / name
        if path.exists():
            lines += [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.strip()]
    return lines or ["The quick brown fox doesn't jump over 12345 lazy dogs.\n"]


def code():
    """Blocks of a few lines, so that line ends are followed by indentation."""
    blocks = []
    for folder, ending in (("esp", "*.cpp"), ("esp", "*.h"), ("tests", "*.py"), ("tools", "*"), ("docs", "*.md")):
        for path in sorted((ROOT / folder).rglob(ending)):
            if path.is_file():
                lines = path.read_text(encoding="utf-8", errors="replace").replace("\0", "").splitlines(keepends=True)
                blocks += ["".join(lines[i:i + 4]) for i in range(0, len(lines), 4)]
    return blocks


def mixed_scripts(rng):
    words = []
    for _ in range(rng.randint(1, 8)):
        script = rng.choice(SCRIPTS)
        letters = []
        for _ in range(rng.randint(1, 9)):
            first, last = rng.choice(script)
            letters.append(chr(rng.randint(first, last)))
        words.append("".join(letters))
    return rng.choice([" ", " ", "", ", ", "\n"]).join(words)


def random_utf8(rng):
    points = []
    for _ in range(rng.randint(1, 24)):
        point = rng.choice((rng.randint(1, 0x7F), rng.randint(1, 0x7FF), rng.randint(1, 0xFFFF), rng.randint(1, 0x10FFFF)))
        points.append(0x20 if 0xD800 <= point < 0xE000 else point)
    return "".join(map(chr, points))


def edge_cases(rng):
    return "".join(rng.choice(EDGE_CASES) for _ in range(rng.randint(1, 16)))


def texts(count, seed=1, kinds=("prose", "code", "scripts", "random", "edge_cases")):
    """Generates `count` texts, alternating between the kinds."""
    rng = random.Random(seed)
    english, blocks = prose(), code()
    make = {"prose": lambda: rng.choice(english), "code": lambda: rng.choice(blocks), "scripts": lambda: mixed_scripts(rng),
            "random": lambda: random_utf8(rng), "edge_cases": lambda: edge_cases(rng)}
    for i in range(count):
        yield make[kinds[i % len(kinds)]]()
